"""The agent's main loop: events in, effects out; what follows from what is decided in `machine`."""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from elastrain_trainer.agent import environment as surroundings
from elastrain_trainer.agent import machine, protocol
from elastrain_trainer.agent.client import Listener, Reporter
from elastrain_trainer.agent.ports import HeldPorts
from elastrain_trainer.agent.workers import Workers, adopt_orphans

log = logging.getLogger("elastrain.agent")

FLUSH_SECONDS = 5.0
PROGRESS_SECONDS = 1.0


class _ChildEnded:
    """SIGCHLD arrived."""


class Agent:
    """One agent, from its start to its exit code."""

    def __init__(self, environment: surroundings.Environment, arguments: list[str]) -> None:
        self._environment = environment
        self._events: queue.SimpleQueue[machine.Event | _ChildEnded] = queue.SimpleQueue()
        self._state = machine.State()
        self._folder = Path(tempfile.mkdtemp(prefix="elastrain-agent-"))
        self._ports = HeldPorts(environment.pod_ip)
        self._workers = Workers(environment, arguments, self._folder / "socket")
        self._reporter = Reporter(environment)
        self._listener = Listener(environment, self._events.put, self._reporter.greet)
        self._exit: machine.Exit | None = None
        self._progressed = 0.0

    def run(self) -> int:
        """Work until the job is over or this pod is to go; return the exit code."""
        adopt_orphans()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._events.put(machine.Terminated()))
        signal.signal(signal.SIGCHLD, lambda *_: self._events.put(_ChildEnded()))
        threading.Thread(target=self._listen_to_workers, name="socket", daemon=True).start()
        log.info("pod %s of job %s waits for a round", self._environment.pod, self._environment.job)
        self._tell()
        self._reporter.start()
        self._listener.start()
        while self._exit is None:
            self._handle(self._next_event())
        self._workers.kill()
        self._workers.reap()
        self._listener.stop()
        self._reporter.flush(FLUSH_SECONDS)
        self._leave_word(self._exit)
        log.info("exit code %d: %s", self._exit.code, self._exit.outcome)
        return self._exit.code

    def _next_event(self) -> machine.Event | _ChildEnded | None:
        deadline = self._workers.deadline
        try:
            return self._events.get(timeout=None if deadline is None else max(deadline - time.monotonic(), 0))
        except queue.Empty:
            return None

    def _handle(self, event: machine.Event | _ChildEnded | None) -> None:
        if self._workers.overdue:
            log.warning("workers did not end within %d s and are killed", self._environment.leave_seconds)
            self._workers.kill()
        if event is None:
            return
        if isinstance(event, _ChildEnded):
            code = self._workers.reap()
            if code is None:
                return
            # Nothing of a round outlives its torchrun.
            self._workers.kill()
            event = machine.WorkersEnded(self._workers.failure(code))
        log_event(event, asked=self._state.stopping)
        self._state, effects = machine.step(self._state, event)
        for effect in effects:
            self._execute(effect)

    def _execute(self, effect: machine.Effect) -> None:
        match effect:
            case machine.Start(told):
                self._ports.release()
                self._workers.start(told)
                self._ports = HeldPorts(self._environment.pod_ip)
            case machine.Stop():
                self._workers.stop()
            case machine.Kill():
                self._workers.kill()
            case machine.Tell():
                self._tell()
            case machine.Exit():
                self._exit = effect

    def _tell(self) -> None:
        body: dict[str, Any] = {
            "type": "state",
            "state": str(self._state.mode),
            "round": self._state.round,
            "ports": self._ports.to_json(),
        }
        if self._state.mode is machine.Mode.FAILED and self._state.failure:
            body["failure"] = self._state.failure.to_json()
        self._reporter.report(body)

    def _listen_to_workers(self) -> None:
        """Pass on what workers send to the agent's socket: progress at most once a second, the rest at once."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
            server.bind(str(self._folder / "socket"))
            while True:
                try:
                    body = json.loads(server.recv(65536))
                    kind = body["type"]
                except (ValueError, KeyError, TypeError):
                    continue
                if kind == "workersFinished":
                    self._events.put(machine.WorkersFinished())
                elif kind in ("progress", "checkpoint", "phase"):
                    self._pass_on(body)

    def _pass_on(self, body: dict[str, Any]) -> None:
        moment = time.monotonic()
        last = body.get("step") is not None and body.get("step") == body.get("totalSteps")
        if body["type"] == "progress" and not last:
            if moment - self._progressed < PROGRESS_SECONDS:
                return
            self._progressed = moment
        self._reporter.report({**body, "round": self._state.round})

    def _leave_word(self, end: machine.Exit) -> None:
        body: dict[str, Any] = {"version": protocol.VERSION, "outcome": end.outcome, "round": self._state.round}
        if end.failure:
            body |= {k: v for k, v in end.failure.to_json().items() if k != "time"}
        try:
            self._environment.termination_log.write_text(json.dumps(body))
        except OSError as error:
            log.warning("cannot write the termination message: %s", error)


def log_event(event: machine.Event, *, asked: bool) -> None:
    """Tell the log of what changes the course of this pod; `asked`: the workers were told to end."""
    match event:
        case protocol.Round():
            log.info("round %d (%s): node %d of %d", event.number, event.reason, event.node_rank, event.nodes)
        case protocol.Leave(reason):
            log.info("told to leave: %s", reason)
        case protocol.Done(complete, message):
            log.info("the job is %s: %s", "complete" if complete else "failed", message)
        case machine.WorkersEnded() if asked:
            log.info("workers have stopped")
        case machine.WorkersEnded(failure) if failure:
            log.error("workers failed: %s: %s", failure.reason, failure.message)
        case machine.WorkersEnded() | machine.WorkersFinished():
            log.info("workers ended with exit code 0")
        case machine.Terminated():
            log.info("SIGTERM: stopping")


def main() -> None:
    """Run the agent with the script and its arguments from the command line."""
    logging.basicConfig(
        level=os.environ.get("ELASTRAIN_LOG_LEVEL", "INFO"),
        stream=sys.stderr,
        format="%(asctime)s elastrain: %(message)s",
        datefmt="%H:%M:%S",
    )
    arguments = sys.argv[1:]
    if not arguments:
        sys.exit(
            "elastrain: no script: give the trainer container `args: [train.py, ...]` or `args: [-m, module, ...]`"
        )
    try:
        environment = surroundings.read(os.environ)
    except surroundings.EnvironmentIncomplete as error:
        sys.exit(f"elastrain: {error}")
    sys.exit(Agent(environment, arguments).run())
