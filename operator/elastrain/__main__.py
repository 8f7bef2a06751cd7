"""`python -m elastrain`."""

from elastrain.cli import app

app()
