"""The commands of `elastrain`."""

from __future__ import annotations

import typer

from elastrain.cli.operator import operator
from elastrain.cli.validate import validate

app = typer.Typer(help="Elastic PyTorch training on Kubernetes.", no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback()
def main() -> None:
    """Elastic PyTorch training on Kubernetes."""


@app.command()
def crd() -> None:
    """Print the CustomResourceDefinition of TrainJob."""
    from elastrain.api.crd import to_yaml

    typer.echo(to_yaml(), nl=False)


app.command()(validate)
app.command()(operator)
