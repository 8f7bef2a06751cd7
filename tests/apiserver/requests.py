"""Plain HTTP to the API server of the tests, where starting kubectl for each question would take most of the time."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.cluster.bench.controlplane import ControlPlane

Json = dict[str, Any]
ROOT = "/apis/elastrain.dev/v1alpha1/namespaces"


class Refused(Exception):
    """The API server refused; the text is what kubectl shows."""


class Requests:
    """One connection, as the administrator."""

    def __init__(self, connection: http.client.HTTPSConnection) -> None:
        self._connection = connection
        self.warnings: list[str] = []

    def __call__(self, method: str, path: str, body: Any = None, content: str = "application/json") -> Json:
        """Return the answer.

        Raises:
            Refused: the code is not 2xx.

        """
        headers = {"Content-Type": content, "Accept": "application/json"}
        self._connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        response = self._connection.getresponse()
        self.warnings += response.headers.get_all("Warning") or []
        answer: Json = json.loads(response.read())
        if response.status >= 300:
            raise Refused(answer["message"])
        return answer

    def try_out(self, job: Json, namespace: str = "default") -> Json:
        """Return what would be stored for a new job; like kubectl, refuse fields that are not known."""
        return self("POST", f"{ROOT}/{namespace}/trainjobs?dryRun=All&fieldValidation=Strict", job)

    def merge(self, name: str, patch: Json, namespace: str, subresource: str = "") -> Json:
        """Merge a patch into a job."""
        path = f"{ROOT}/{namespace}/trainjobs/{name}{subresource}?fieldValidation=Strict"
        return self("PATCH", path, patch, "application/merge-patch+json")


@contextmanager
def connect(server: ControlPlane) -> Iterator[Requests]:
    """Connect to the API server."""
    context = ssl.create_default_context(cafile=str(server.state / "pki/ca.crt"))
    context.load_cert_chain(server.state / "pki/admin.crt", server.state / "pki/admin.key")
    connection = http.client.HTTPSConnection(server.address, server.port, context=context, timeout=30)
    try:
        yield Requests(connection)
    finally:
        connection.close()
