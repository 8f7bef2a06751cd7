"""Runs that end with the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.local.running import Local


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Callable[..., Local]]:
    """Starts runs."""
    made: list[Local] = []

    def start(*arguments: str, **options: Any) -> Local:
        made.append(Local(tmp_path, *arguments, **options))
        return made[-1]

    yield start
    for run in made:
        run.close()
