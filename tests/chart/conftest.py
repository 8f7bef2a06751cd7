"""The chart rendered by helm."""

from __future__ import annotations

import pytest
from tests.chart.rendering import Helm


@pytest.fixture(scope="session")
def helm() -> Helm:
    """The helm program."""
    return Helm.found()
