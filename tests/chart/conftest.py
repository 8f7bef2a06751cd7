"""The chart rendered by helm."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.chart.rendering import Helm
from tests.cluster.bench import tools


@pytest.fixture(scope="session")
def helm() -> Helm:
    """Helm from PATH, else the one of the bench, which is built if need be."""
    return Helm(Path(shutil.which("helm") or tools.folder() / "helm"))
