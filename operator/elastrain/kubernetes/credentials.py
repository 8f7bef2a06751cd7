"""How the API server is reached: address, TLS and credentials, as the `kubernetes` package reads them.

In a pod they are the service account's, whose token is read anew each minute; elsewhere the kubeconfig's.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field


class NoCluster(Exception):
    """Neither a service account nor a usable kubeconfig was found."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Where the API server is and how to log in.

    `authorization` returns the header's value for the next request, or None where a client certificate is the
    login; it may read a file.
    """

    server: str
    tls: ssl.SSLContext | None = None
    authorization: Callable[[], str | None] = field(default=lambda: None)
    tls_server_name: str | None = None
    proxy: str | None = None


def load_credentials(context: str | None = None) -> Credentials:
    """Return the credentials of the pod's service account, or of the kubeconfig.

    Args:
        context: a context of the kubeconfig; None: the pod's service account, else the current context.

    Raises:
        NoCluster: neither can be used.

    """
    from kubernetes.client import Configuration
    from kubernetes.config import ConfigException, load_incluster_config, load_kube_config

    found = Configuration()

    def load() -> None:
        if not context:
            with suppress(ConfigException):  # not in a pod
                load_incluster_config(client_configuration=found)
                return
        load_kube_config(context=context, client_configuration=found)

    try:
        load()
    except (ConfigException, OSError) as error:
        raise NoCluster(
            f"no Kubernetes cluster to talk to: {error}; run in a pod with a service account, or set KUBECONFIG"
        ) from error

    def authorization() -> str | None:
        value: str | None = found.get_api_key_with_prefix("BearerToken")
        return value or found.get_basic_auth_token() if found.username else value

    return Credentials(
        server=str(found.host).rstrip("/"),
        tls=_tls(found.host, found.verify_ssl, found.ssl_ca_cert, found.cert_file, found.key_file),
        authorization=authorization,
        tls_server_name=getattr(found, "tls_server_name", None),
        proxy=found.proxy,
    )


def _tls(
    server: str, verify: bool, authority: str | None, certificate: str | None, key: str | None
) -> ssl.SSLContext | None:
    if not server.startswith("https:"):
        return None
    context = ssl.create_default_context(cafile=authority)
    if not verify:  # insecure-skip-tls-verify of the kubeconfig
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate:
        context.load_cert_chain(certificate, key)
    return context
