"""`elastrain operator`: run the operator."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from elastrain.cli.logs import LogFormat, set_up_logging


class Level(StrEnum):
    """How much is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def _env(name: str) -> str:
    return f"ELASTRAIN_OPERATOR_{name}"


def operator(
    coordinator_url: Annotated[
        str, typer.Option(envvar=_env("COORDINATOR_URL"), help="Where pods reach the coordinator: https://host:port.")
    ],
    tls_dir: Annotated[
        Path,
        typer.Option(
            envvar=_env("TLS_DIR"), help="Folder with tls.crt, tls.key and ca.crt; read anew when they change."
        ),
    ],
    port: Annotated[
        int, typer.Option(envvar=_env("PORT"), min=0, max=65535, help="Where the coordinator listens.")
    ] = 8443,
    lease_name: Annotated[
        str, typer.Option(envvar=_env("LEASE_NAME"), help="The Lease that the acting replica holds.")
    ] = "elastrain",
    lease_namespace: Annotated[
        str, typer.Option(envvar=_env("LEASE_NAMESPACE"), help="The namespace of the Lease and of this pod.")
    ] = "default",
    pod_name: Annotated[
        str, typer.Option(envvar=_env("POD_NAME"), help="This pod, to be marked while it leads; empty: none.")
    ] = "",
    namespaces: Annotated[
        str, typer.Option(envvar=_env("NAMESPACES"), help="Namespaces to look after, separated by commas; empty: all.")
    ] = "",
    workers: Annotated[
        int, typer.Option(envvar=_env("WORKERS"), min=1, max=1000, help="How many jobs are looked at at once.")
    ] = 16,
    network_policy: Annotated[
        bool,
        typer.Option(
            "--network-policy", envvar=_env("NETWORK_POLICY"), help="Close each job's pods to all but each other."
        ),
    ] = False,
    log_level: Annotated[Level, typer.Option(envvar=_env("LOG_LEVEL"), help="How much is logged.")] = Level.INFO,
    log_format: Annotated[
        LogFormat, typer.Option(envvar=_env("LOG_FORMAT"), help="How a line of the log looks.")
    ] = LogFormat.PLAIN,
) -> None:
    """Run the operator in the cluster of the pod's service account, or of KUBECONFIG."""
    import asyncio
    import logging

    from elastrain.kubernetes.credentials import NoCluster
    from elastrain.kubernetes.errors import ApiError
    from elastrain.kubernetes.schema import UnusableCRD
    from elastrain.operator import Options, run

    set_up_logging(log_level.value, log_format)
    options = Options(
        coordinator_url=coordinator_url,
        tls_dir=tls_dir,
        port=port,
        lease_name=lease_name,
        lease_namespace=lease_namespace,
        pod_name=pod_name,
        namespaces=tuple(name.strip() for name in namespaces.split(",") if name.strip()),
        workers=workers,
        network_policy=network_policy,
    )
    try:
        code = asyncio.run(run(options))
    except (NoCluster, UnusableCRD, ApiError, OSError) as error:
        logging.getLogger("elastrain").error("the operator cannot run: %s", error)  # noqa: TRY400 - the text suffices
        code = 1
    logging.shutdown()
    # Without waiting for threads: whoever lost the Lease has to be gone before another takes over.
    os._exit(code)
