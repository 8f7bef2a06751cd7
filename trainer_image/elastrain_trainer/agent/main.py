"""The agent's main loop: events in, effects out; what follows from what is decided in `machine`."""

from __future__ import annotations

import logging
import os
import queue
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

from elastrain_trainer.agent import environment as surroundings
from elastrain_trainer.agent import machine, protocol, word
from elastrain_trainer.agent.client import Listener, Reporter
from elastrain_trainer.agent.mailbox import Mailbox
from elastrain_trainer.agent.ports import HeldPorts
from elastrain_trainer.agent.sessions import SessionServer
from elastrain_trainer.agent.workers import SESSIONS, SOCKET, Workers, adopt_orphans, now

log = logging.getLogger("elastrain.agent")

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
FLUSH_SECONDS = 5.0
SETTLE_SECONDS = 2.0
GRACE = 1 / 3
"""The part of leaveSeconds that a pod being deleted waits for a round without it, before its workers are stopped."""

MEMORY = Path("/dev/shm")  # noqa: S108 - where there is no other folder to write to


class _ChildEnded:
    """SIGCHLD arrived."""


class _SessionsChanged:
    """A session said something, opened or closed."""


_Happening = machine.Event | _ChildEnded | _SessionsChanged


class Agent:
    """One agent, from its start to its exit code."""

    def __init__(self, environment: surroundings.Environment) -> None:
        self._environment = environment
        self._events: queue.SimpleQueue[_Happening] = queue.SimpleQueue()
        self._state = machine.State()
        self._folder = _folder()
        self._mailbox = Mailbox(self._folder / SOCKET)
        self._sessions = SessionServer(self._folder / SESSIONS, lambda: self._events.put(_SessionsChanged()))
        self._workers = Workers(environment, self._folder)
        self._ports = HeldPorts(environment.pod_ip)
        self._ports_in_use: HeldPorts | None = None
        self._reporter = Reporter(environment)
        self._listener = Listener(environment, self._events.put, self._reporter.greet)
        self._exit: machine.Exit | None = None

    def run(self) -> int:
        """Work until the job is over or this pod is to go; return the exit code."""
        adopt_orphans()
        for number in STOP_SIGNALS:
            signal.signal(number, lambda *_: self._events.put(machine.Terminated()))
        signal.signal(signal.SIGCHLD, lambda *_: self._events.put(_ChildEnded()))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        log.info("pod %s of job %s waits for a round", self._environment.pod, self._environment.job)
        threading.Thread(target=self._pass_on, name="mailbox", daemon=True).start()
        self._tell()
        self._reporter.start()
        self._listener.start()
        try:
            while self._exit is None:
                self._handle(self._next_event())
        finally:
            self._workers.kill()
            self._workers.reap()
        self._leave_word(self._exit.outcome, self._exit.failure)
        self._reporter.flush(FLUSH_SECONDS)
        shutil.rmtree(self._folder, ignore_errors=True)
        log.info("exit code %d: %s", self._exit.code, self._exit.outcome)
        return self._exit.code

    def _next_event(self) -> _Happening | None:
        deadline = self._workers.deadline
        try:
            return self._events.get(timeout=None if deadline is None else max(deadline - time.monotonic(), 0))
        except queue.Empty:
            return None

    def _handle(self, event: _Happening | None) -> None:
        if self._workers.overdue:
            log.warning("workers did not end within %d s and are killed", self._environment.leave_seconds)
            self._workers.kill()
        if event is None:
            return
        if isinstance(event, _ChildEnded):
            code = self._workers.reap()
            if code is None:
                return
            # Nothing of a round outlives its launcher.
            self._workers.kill()
            self._mailbox.settle(SETTLE_SECONDS)  # what they said comes before that they ended
            event = machine.WorkersEnded(self._workers.failure(code))
        elif isinstance(event, _SessionsChanged):
            event = self._sessions.state
        before = self._state
        log_event(event, before)
        self._state, effects = machine.step(self._state, event)
        if self._state.going and not before.going and not isinstance(self._state.leaving, protocol.Done):
            # Said beforehand, in case the kubelet's patience ends before the workers do.
            self._leave_word("left", None)
        for effect in effects:
            self._execute(effect)

    def _execute(self, effect: machine.Effect) -> None:
        match effect:
            case machine.Start(told):
                self._start(told)
            case machine.Regroup(told):
                self._hold_ports()
                self._mailbox.also_of_round(told.number, told.node_rank)
                self._sessions.tell(told)
            case machine.Grace():
                self._grace()
            case machine.Stop():
                self._workers.stop()
            case machine.Kill():
                self._workers.kill()
            case machine.Tell():
                self._tell()
            case machine.Exit():
                self._exit = effect

    def _start(self, told: protocol.Round) -> None:
        self._hold_ports()
        self._mailbox.of_round(told.number, told.node_rank)
        self._sessions.begin(told)
        self._workers.start(told)

    def _hold_ports(self) -> None:
        """Hold new ports for the next round, and those of this one until then."""
        if self._ports_in_use:
            self._ports_in_use.release()
        self._ports_in_use, self._ports = self._ports, HeldPorts(self._environment.pod_ip)

    def _grace(self) -> None:
        seconds = self._environment.leave_seconds * GRACE
        timer = threading.Timer(seconds, self._events.put, (machine.GraceOver(),))
        timer.daemon = True
        timer.start()

    def _tell(self) -> None:
        body: dict[str, Any] = {
            "type": "state",
            "state": str(self._state.mode),
            "round": self._state.round,
            "ports": self._ports.to_json(),
        }
        sessions = self._state.sessions
        if sessions.open:
            body |= {"inPlace": True, "formed": sessions.formed, "stalled": sessions.stalled}
        if self._state.mode is machine.Mode.FAILED and self._state.failure:
            body["failure"] = self._state.failure.to_json()
        self._reporter.report(body)

    def _pass_on(self) -> None:
        while True:
            report = self._mailbox.receive()
            if report:
                self._reporter.report(report)

    def _leave_word(self, outcome: str, failure: protocol.Failure | None) -> None:
        word.leave(self._environment.termination_log, word.last_word(outcome, self._state.round, failure))


def _folder() -> Path:
    """Return a new folder of the agent's own, in memory where no other can be written to."""
    try:
        return Path(tempfile.mkdtemp(prefix="elastrain-"))
    except OSError:  # a read-only root file system
        return Path(tempfile.mkdtemp(prefix="elastrain-", dir=MEMORY))


def log_event(event: machine.Event, state: machine.State) -> None:
    """Tell the log of what changes the course of this pod, given the state before it."""
    match event:
        case protocol.Round() if event.leaves:
            log.info("round %d (%s): without this pod", event.number, event.reason)
        case protocol.Round():
            log.info("round %d (%s): node %d of %d", event.number, event.reason, event.node_rank, event.nodes)
        case protocol.Leave(reason):
            log.info("told to leave: %s", reason)
        case protocol.Done(complete, message):
            log.info("the job is %s: %s", "complete" if complete else "failed", message)
        case machine.Sessions(formed=formed, stalled=stalled):
            if stalled and stalled != state.sessions.stalled:
                log.warning("round %d has lost a member: waiting for the next round", stalled)
            if formed > state.sessions.formed:
                log.info("round %d trains", formed)
        case machine.WorkersEnded() if state.stopping or state.departing:
            log.info("workers have stopped")
        case machine.WorkersEnded(failure) if failure:
            log.error("workers failed: %s: %s", failure.reason, failure.message)
        case machine.WorkersEnded():
            log.info("workers ended with exit code 0")
        case machine.Terminated():
            log.info("SIGTERM: stopping")
        case machine.GraceOver():
            return


def main() -> NoReturn:
    """Run the agent with the script and its arguments from the command line; always leaves a last word."""
    logging.basicConfig(
        level=os.environ.get("ELASTRAIN_LOG_LEVEL", "INFO"),
        stream=sys.stderr,
        format="%(asctime)s elastrain: %(message)s",
        datefmt="%H:%M:%S",
    )
    try:
        environment = surroundings.read(os.environ, sys.argv[1:])
    except surroundings.EnvironmentIncomplete as error:
        _give_up(machine.ExitCode.USER_ERROR, "userError", "InvalidArguments", str(error))
    try:
        code = Agent(environment).run()
    except Exception as error:
        log.exception("the agent itself failed")
        _give_up(machine.ExitCode.RETRY, "retry", "AgentFailed", f"{type(error).__name__}: {error}")
    sys.exit(code)


def _give_up(code: int, outcome: str, reason: str, message: str) -> NoReturn:
    failure = protocol.Failure(reason, message, now())
    word.leave(surroundings.termination_log(os.environ), word.last_word(outcome, 0, failure))
    log.error("%s", message)
    sys.exit(code)
