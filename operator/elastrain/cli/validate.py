"""`elastrain validate`: what the API server would refuse in a file, told without a cluster."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def validate(
    file: Annotated[
        typer.FileText, typer.Argument(help="YAML with TrainJobs; - for the standard input.", encoding="utf-8")
    ],
) -> None:
    """Check the TrainJobs in a file as the API server would; objects of other kinds are passed over."""
    import yaml

    try:
        documents = [document for document in yaml.safe_load_all(file) if document is not None]
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        typer.echo(f"{file.name}: not YAML: {error}", err=True)
        raise typer.Exit(1) from None
    sound = [_report(file.name, document) for document in documents if _is_ours(document)]
    if not sound:
        typer.echo(
            f"{file.name}: no TrainJob in it; write apiVersion: elastrain.dev/v1alpha1, kind: TrainJob", err=True
        )
    if not sound or not all(sound):
        raise typer.Exit(1)


def _is_ours(document: Any) -> bool:
    """Return whether a document is, or seems meant to be, a TrainJob of ours."""
    if not isinstance(document, dict):
        return True
    return document.get("kind") == "TrainJob" or str(document.get("apiVersion")).startswith("elastrain.dev/")


def _report(file: str, document: Any) -> bool:
    from elastrain.api.validation import problems

    found = problems(document)
    metadata = document.get("metadata") if isinstance(document, dict) else None
    name = metadata.get("name") if isinstance(metadata, dict) else None
    for sentence in found:
        typer.echo(f"{file}: trainjob/{name}: {sentence}", err=True)
    if not found:
        typer.echo(f"{file}: trainjob/{name} is valid")
    return not found
