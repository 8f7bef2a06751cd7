"""The command line: one subject a module, what is heavy imported inside the commands."""

from elastrain.cli.main import app

__all__ = ["app"]
