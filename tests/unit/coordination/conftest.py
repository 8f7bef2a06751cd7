"""A coordinator that really serves HTTPS on loopback, and clients that trust it."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import trustme
from tests.unit.coordination.service import DEADLINE, Service, World, write_certificate

from elastrain.coordination import Coordinator, serve, server_context


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def certificates(tmp_path: Path, authority: trustme.CA) -> Path:
    write_certificate(authority, tmp_path)
    return tmp_path


@pytest.fixture
def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


@pytest.fixture
def world() -> World:
    return World()


Start = Callable[..., Any]


@pytest.fixture
async def start(world: World, certificates: Path, trusting: ssl.SSLContext) -> AsyncIterator[Start]:
    """Start coordinators with other time limits than the usual ones."""
    running: list[Any] = []

    async def started(identity: str = "operator-1", **limits: float) -> Service:
        coordinator = Coordinator(
            identity=identity,
            authenticate=world.authenticate,
            membership=world.membership,
            wake=world.wake,
            clock=lambda: world.now,
            **limits,
        )
        application = coordinator.application(healthy=lambda: world.sick, serving=lambda: world.serving)
        runner = await serve(application, host="127.0.0.1", port=0, context=server_context(certificates))
        connector = aiohttp.TCPConnector(ssl=trusting, limit=0)
        session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(DEADLINE))
        running.append((session, runner))
        return Service(coordinator, session, f"https://127.0.0.1:{runner.addresses[0][1]}")

    yield started
    for session, runner in running:
        await session.close()
        await runner.cleanup()


@pytest.fixture
async def service(start: Start) -> Service:
    return await start()
