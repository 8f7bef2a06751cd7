"""Never two leaders, whatever the network does; and one soon, once it is well again. In virtual time."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.faults import virtual_time
from tests.faults.fake_apiserver import Answers, FakeApiServer, Fault, Lost, Silent, When

from elastrain.kubernetes.client import Client
from elastrain.kubernetes.election import Elector, Terms
from elastrain.kubernetes.transport import Request, Response, Stream

TERMS = Terms()
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"


@dataclass
class Link:
    """One candidate's own connection to the server, which may be disturbed for a while."""

    server: FakeApiServer
    disturbances: list[tuple[float, float, Fault]] = field(default_factory=list)

    async def send(self, request: Request, *, timeout: float) -> Response:
        now = asyncio.get_running_loop().time() - 1000.0
        due = [fault for begin, end, fault in self.disturbances if begin <= now < end]
        self.server.faults = lambda _request: due[0] if due else None
        return await self.server.send(request, timeout=timeout)

    def stream(self, request: Request, *, inactivity: float) -> AbstractAsyncContextManager[Stream]:
        raise NotImplementedError


@dataclass
class Contest:
    """Candidates that come back under a new identity after each end, and who leads."""

    server: FakeApiServer = field(default_factory=FakeApiServer)
    leading: list[str] = field(default_factory=list)
    log: list[tuple[float, str]] = field(default_factory=list)

    async def candidate(self, name: str, link: Link, *, rest: float = 1.0) -> None:
        for life in range(1000):
            me = f"{name}-{life}"
            elector = Elector(Client(link), namespace="default", name="elastrain", identity=me, terms=TERMS)
            await elector.acquire()
            assert not self.leading, f"{me} leads beside {self.leading}"
            self.leading.append(me)
            self.log.append((asyncio.get_running_loop().time() - 1000.0, me))
            try:
                await elector.hold()
            finally:
                self.leading.remove(me)
            await asyncio.sleep(rest)


_faults = st.sampled_from(
    [Lost(), Lost(When.DONE), Silent(), Silent(When.DONE), Answers(500), Answers(409), Answers(429, 1)]
)
_disturbances = st.lists(
    st.tuples(st.integers(0, 100), st.integers(1, 40), _faults).map(lambda d: (float(d[0]), float(d[0] + d[1]), d[2])),
    max_size=6,
)


@settings(max_examples=100, deadline=None)
@given(st.lists(_disturbances, min_size=2, max_size=3))
def test_never_two_leaders_and_one_when_the_network_is_well(links: list[list[tuple[float, float, Fault]]]) -> None:
    async def main() -> None:
        contest = Contest()
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(contest.candidate(f"c{n}", Link(contest.server, disturbances)))
                for n, disturbances in enumerate(links)
            ]
            await asyncio.sleep(140 + TERMS.duration + 2 * TERMS.retry)
            leaders = list(contest.leading)
            holder = contest.server.get("leases", "default", "elastrain")["spec"]["holderIdentity"]
            for task in tasks:
                task.cancel()
        assert leaders == [holder]

    virtual_time.run(main())


def _takeover(*, release: bool) -> float:
    """Return how long after the leader's end another leads."""

    async def main() -> float:
        server = FakeApiServer()
        first = Elector(Client(server), namespace="default", name="elastrain", identity="first")
        second = Elector(Client(server), namespace="default", name="elastrain", identity="second")
        await first.acquire()
        holding = asyncio.create_task(first.hold())
        waiting = asyncio.create_task(second.acquire())
        await asyncio.sleep(61.9)
        holding.cancel()
        await asyncio.sleep(0)
        if release:
            await first.release()
        began = asyncio.get_running_loop().time()
        await waiting
        return asyncio.get_running_loop().time() - began

    return virtual_time.run(main())


def test_a_crashed_leader_is_followed_within_fifteen_seconds() -> None:
    assert _takeover(release=False) <= TERMS.duration + TERMS.retry < 15


def test_a_leader_that_resigns_is_followed_at_the_next_try() -> None:
    assert _takeover(release=True) <= TERMS.retry + 0.2


def test_the_terms_are_safe() -> None:
    """Whoever cannot renew stops before anybody may take over, with time for what is under way."""
    assert TERMS.deadline + TERMS.retry < TERMS.duration


def test_a_lease_with_a_clock_of_its_own_is_respected_for_its_duration() -> None:
    """A holder whose clock is a year ahead or behind is timed by our clock."""

    async def main() -> None:
        server = FakeApiServer()
        spec = {"holderIdentity": "odd", "renewTime": "2031-01-01T00:00:00.000000Z", "leaseDurationSeconds": 30}
        server.put(LEASES, {"metadata": {"name": "elastrain", "namespace": "default"}, "spec": spec})
        elector = Elector(Client(server), namespace="default", name="elastrain", identity="me")
        began = asyncio.get_running_loop().time()
        await elector.acquire()
        assert 30 <= asyncio.get_running_loop().time() - began <= 30 + TERMS.retry
        assert server.get("leases", "default", "elastrain")["spec"]["leaseTransitions"] == 1

    virtual_time.run(main())


def test_release_leaves_another_holders_lease_alone() -> None:
    async def main() -> None:
        server = FakeApiServer()
        mine = Elector(Client(server), namespace="default", name="elastrain", identity="mine")
        other = Elector(Client(server), namespace="default", name="elastrain", identity="other")
        await other.acquire()
        await mine.release()
        assert server.get("leases", "default", "elastrain")["spec"]["holderIdentity"] == "other"

    virtual_time.run(main())
