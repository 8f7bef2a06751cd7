"""The session: what makes a training loop elastic without a restart of its processes.

At every boundary between two steps the workers agree, by one small reduction that runs beside the next step, whether
to go over into the next round; its members keep their processes, newcomers get the state. When a peer is lost, the
survivors take the state of the one that is furthest and do the step in flight again.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from elastrain_trainer.agent.protocol import Round
from elastrain_trainer.checkpoint import raise_fence
from elastrain_trainer.failures import is_peer_lost
from elastrain_trainer.session import transfer
from elastrain_trainer.session.channel import Channel
from elastrain_trainer.session.group import Group, Unformed
from elastrain_trainer.session.meeting import Meeting
from elastrain_trainer.session.state import State

log = logging.getLogger("elastrain.session")

WORD_SECONDS = 5.0
"""How long a worker waits for the word of a round that its peers have heard of."""

LOOK_SECONDS = 0.2


class StateLost(RuntimeError):
    """No worker has a whole state any more; training has to start from a checkpoint."""


class Session:
    """A training loop that goes on while nodes come and go.

        session = Session(model, optimizer, scheduler, step=resumed, save=save)
        for step in session.steps(total):
            with session.attempt():
                ...  # all that the step does, logging and saving included

    Make it once model and optimizer are as they are to be trained (after `accelerator.prepare`). Take the rank and
    the number of processes from the session in every step, since both change. Whatever is in the `with` may be done
    again if a node is lost; only what changes the registered objects and the random numbers is taken back.

    Outside a pod it does nothing but count, and stop after SIGTERM.
    """

    def __init__(self, *objects: Any, step: int = 0, save: Callable[[int], object] | None = None) -> None:
        """Open the session; under an agent this waits for the other members of the round and forms their group.

        Args:
            objects: models, optimizers, and others with state_dict and load_state_dict that move with the steps.
            step: optimizer steps done already, 0 or what a checkpoint says.
            save: called with the number of steps done, on all ranks, when training is told to stop.

        Raises:
            NotRegistrable: one of the objects cannot be carried over.
            Mismatch: the others train another model, or with another torch.
            NotTransferable: a state_dict holds what cannot be sent.

        """
        self.step = step
        self._save = save
        self._state = State(objects)
        self._group = Group()
        self._lock = threading.Lock()  # both threads come to know of rounds
        self._meetings: dict[int, Meeting] = {}
        self._pending: tuple[torch.Tensor, Any] | None = None
        self._attempted = True
        self._terminated = False
        self._former = signal.signal(signal.SIGTERM, self._on_sigterm)
        address = os.environ.get("ELASTRAIN_SESSION_SOCKET")
        self._fingerprint = self._state.fingerprint()
        self._channel = Channel(address, self._on_round) if address else None
        if self._channel:
            kept = self._state.detach() if dist.is_initialized() else []
            self._group.destroy()
            _end_alone()
            self._enter(kept, new=True)

    @property
    def rank(self) -> int:
        """This worker's place among all."""
        return dist.get_rank() if dist.is_initialized() else 0

    @property
    def world_size(self) -> int:
        """How many workers train together."""
        return dist.get_world_size() if dist.is_initialized() else 1

    def steps(self, total: int) -> Iterator[int]:
        """Yield the number of each step, counted from 1, until so many are done; a step whose peers fail comes again.

        Args:
            total: optimizer steps to do in all.

        Raises:
            SystemExit: this worker is to end: after SIGTERM, or because its node leaves.

        """
        try:
            while self.step < total:
                if not self._attempted:
                    raise RuntimeError("put all that the step does in `with session.attempt():`")
                self._attempted = False
                self._cross_boundary()
                if self.step < total:
                    yield self.step + 1
            self._await_peers()
        finally:
            self.close()

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Do one step; if it fails because a peer is lost, go on with those that are left."""
        self._attempted = True
        self._state.begin_step()
        try:
            yield
        except Exception as error:
            if not self._is_loss(error):
                raise
            log.warning("step %d: a peer is lost: %s", self.step + 1, str(error).splitlines()[0][:200])
            self._recover()
        else:
            if self._channel and self._group.is_cut:
                # The script has hidden the error: what it went on with cannot be trusted.
                self._recover()
            else:
                self.step += 1

    def close(self) -> None:
        """Go into no further round; called at the end of `steps`."""
        if self._channel:
            self._channel.close()
        for meeting in self._meetings.values():
            meeting.leave(join=True)
        if signal.getsignal(signal.SIGTERM) == self._on_sigterm:
            signal.signal(signal.SIGTERM, self._former)

    # What comes from outside, in other threads and in signal handlers.

    def _on_sigterm(self, _number: int, _frame: FrameType | None) -> None:
        self._terminated = True

    def _on_round(self, told: Round) -> None:
        """Attend the round's meeting if this worker goes on into it; cut the group if the round is without a peer."""
        present = self._group.told
        if present is None:
            return
        if not told.joins:
            self._attend(told, trains=True)
        there = {member.pod for member in told.members if not member.joining} | set(told.leavers)
        lost = {member.pod for member in present.members} - there
        if lost:
            log.warning("round %d is without %s", told.number, ", ".join(sorted(lost)))
            self._group.cut()

    def _attend(self, told: Round, *, trains: bool) -> Meeting:
        with self._lock:
            known = self._meetings.get(told.number)
            if known is None:
                known = Meeting(told, _rank(told), self._fingerprint, trains=trains)
                self._meetings[told.number] = known
            return known

    # Boundaries.

    def _cross_boundary(self) -> None:
        """Do what all agreed on at the boundary before, and ask what to do at the next one."""
        while True:
            try:
                word = self._agreed()
                if word % 2 == 0 and word // 2 > self._group.number:
                    self._go_over(word // 2)
                elif word % 2:
                    self._stop()
                self._ask()
            except Exception as error:
                if not self._is_loss(error):
                    raise
                log.warning("after step %d: a peer is lost: %s", self.step, str(error).splitlines()[0][:200])
                self._lose_group(dirty=False)
            else:
                return

    def _agreed(self) -> int:
        """Return the greatest of what all workers asked at the last boundary; 0: nothing."""
        if self._pending is None:
            return 0
        (flag, work), self._pending = self._pending, None
        if work is not None:
            work.wait()
        return int(flag.item())

    def _ask(self) -> None:
        """Ask, by even numbers, for a round of which all members have arrived; by odd ones, to stop."""
        present = self._group.number
        ready = [number for number, meeting in list(self._meetings.items()) if number > present and meeting.is_ready]
        wish = 2 * max(ready) if ready else 2 * present + 1 if self._terminated else 0
        if not dist.is_initialized():
            self._pending = torch.tensor(wish), None
            return
        flag = torch.tensor(wish, device=self._group.device)
        self._pending = flag, dist.all_reduce(flag, op=dist.ReduceOp.MAX, async_op=True)

    def _go_over(self, number: int) -> None:
        assert self._channel is not None
        told = self._channel.round(number, WORD_SECONDS)
        if told is None:
            sys.exit(0)  # its members have all arrived, and this worker is none of them
        meeting = self._attend(told, trains=True)
        if not meeting.decide():
            return
        kept = self._leave_group()
        if told.leaves:
            sys.exit(0)
        try:
            self._form(told, kept, new=False, dirty=False)
        except Exception as error:
            if not self._is_loss(error):
                raise
            log.warning("round %d did not form: %s", number, str(error).splitlines()[0][:200])
            self._group.destroy()
            self._enter(kept, new=False, after=number)

    def _stop(self) -> None:
        """Save, all together; then those that were told to end do."""
        if self._save:
            self._save(self.step)
        if self._terminated:
            self._leave_group()
            sys.exit(0)

    def _await_peers(self) -> None:
        """Wait until all have done the last step, so that nobody's end looks like a loss."""
        try:
            self._agreed()
        except RuntimeError:
            return

    # Losses.

    def _is_loss(self, error: Exception) -> bool:
        if self._channel is None or isinstance(error, StateLost):
            return False
        return isinstance(error, Unformed) or is_peer_lost(error) or self._group.is_cut

    def _recover(self) -> None:
        if self._state.is_applied:
            self.step += 1
            self._state.finish_step()
        elif not self._state.is_partial:
            self._state.undo_step()
        self._lose_group(dirty=self._state.is_partial)

    def _lose_group(self, *, dirty: bool) -> None:
        number = self._group.number
        self._pending = None
        kept = self._leave_group()
        for meeting in list(self._meetings.values()):
            meeting.stop_training()
        assert self._channel is not None
        self._channel.report(stalled=number)
        self._enter(kept, new=False, dirty=dirty, after=number)

    def _leave_group(self) -> list[dict[str, Any]]:
        kept = self._state.detach() if dist.is_initialized() else []
        self._group.destroy()
        return kept

    # Rounds.

    def _enter(self, kept: list[dict[str, Any]], *, new: bool, dirty: bool = False, after: int = 0) -> None:
        """Wait for a round newer than `after`, outside any group, until one has formed."""
        assert self._channel is not None
        while True:
            told = self._channel.wait(newer_than=after, seconds=LOOK_SECONDS)
            if self._terminated:
                sys.exit(0)
            if told is None:
                continue
            if told.leaves:
                sys.exit(0)
            after = told.number
            meeting = self._attend(told, trains=False)
            meeting.stop_training()
            if not self._goes(meeting):
                continue
            try:
                self._form(told, kept, new=new, dirty=dirty)
            except Exception as error:
                if not self._is_loss(error):
                    raise
                log.warning("round %d did not form: %s", told.number, str(error).splitlines()[0][:200])
                self._group.destroy()
                self._channel.report(stalled=told.number)
            else:
                return

    def _goes(self, meeting: Meeting) -> bool:
        """Wait for the decision; a newer round ends the waiting, unless the decision has been to go."""
        assert self._channel is not None
        while not meeting.decided.wait(LOOK_SECONDS):
            if self._terminated:
                sys.exit(0)
            if self._channel.newest() > meeting.told.number:
                return meeting.withdraw()
        if meeting.error:
            if not isinstance(meeting.error, RuntimeError):
                raise meeting.error
            log.warning("round %d: %s", meeting.told.number, str(meeting.error).splitlines()[0][:200])
            self._channel.report(stalled=meeting.told.number)
        return meeting.go

    def _form(self, told: Round, kept: list[dict[str, Any]], *, new: bool, dirty: bool) -> None:
        """Form the group of a round and bring all members to the same state."""
        rank = _rank(told)
        self._group.form(told, rank)
        _tell_the_script(told, rank)
        self._share(new=new, dirty=dirty)
        self._state.attach(kept)
        for number in [number for number in self._meetings if number <= told.number]:
            self._meetings.pop(number).leave()
        assert self._channel is not None
        self._channel.forget(told.number)
        folder = os.environ.get("ELASTRAIN_CHECKPOINT_PATH")
        if folder and rank == 0:
            raise_fence(Path(folder))
        self._channel.report(formed=told.number, stalled=0)
        newest = self._channel.round(self._channel.newest(), 0)
        if newest and newest.number > told.number:
            self._on_round(newest)  # it came while there was no group to judge it by
        log.info("round %d trains from step %d as rank %d of %d", told.number, self.step + 1, rank, told.world_size)

    def _share(self, *, new: bool, dirty: bool) -> None:
        """Bring all members to the state of the one that is furthest.

        Raises:
            StateLost: none has a whole state.

        """
        device = self._group.device
        own = torch.tensor([self.step, int(new), int(dirty)], device=device)
        gathered = [torch.empty_like(own) for _ in range(self.world_size)]
        dist.all_gather(gathered, own)
        rows = [tuple(int(number) for number in row.tolist()) for row in gathered]
        whole = [(step, -rank) for rank, (step, fresh, partial) in enumerate(rows) if not partial and not fresh]
        if not whole:
            whole = [(step, -rank) for rank, (step, _, partial) in enumerate(rows) if not partial]
        if not whole:
            raise StateLost("every worker lost a peer in the middle of its optimizers' updates")
        step, place = max(whole)
        all_new = all(fresh for _, fresh, _ in rows)
        if all(row == (step, int(all_new), 0) for row in rows):
            return
        source = -place
        tensors = [tensor for _, tensor in self._state.tensors()]
        sent = self._state.extract() if source == self.rank else None
        state = transfer.share(sent, tensors, source=source, device=device)
        if source != self.rank:
            self._state.restore(state)
            self._state.drop_gradients()
        self.step = step


def _rank(told: Round) -> int:
    """Return this worker's place in a round; -1 if its pod leaves."""
    if told.leaves:
        return -1
    return told.node_rank * told.processes_per_node + int(os.environ.get("LOCAL_RANK", "0"))


def _tell_the_script(told: Round, rank: int) -> None:
    """Put the numbers of the round where scripts and Accelerate look for them."""
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(told.world_size),
        "GROUP_RANK": str(told.node_rank),
        "GROUP_WORLD_SIZE": str(told.nodes),
        "MASTER_ADDR": told.store.host,
        "MASTER_PORT": str(told.store.port),
        "ELASTRAIN_ROUND": str(told.number),
    }
    accelerate = sys.modules.get("accelerate.state")
    if accelerate:
        for state in (accelerate.PartialState._shared_state, accelerate.AcceleratorState._shared_state):
            if "num_processes" in state:
                state |= {"num_processes": told.world_size, "process_index": rank}


def _end_alone() -> None:
    """Give torch.distributed back what `alone` took."""
    alone = sys.modules.get("elastrain_trainer.alone")
    if alone:
        alone.end()
