"""The server's side of TLS, with certificates that are renewed in place."""

from __future__ import annotations

import logging
import os
import ssl
from pathlib import Path

log = logging.getLogger(__name__)

CERTIFICATE, KEY = "tls.crt", "tls.key"  # the names in a Kubernetes Secret of type kubernetes.io/tls


def server_context(folder: Path) -> ssl.SSLContext:
    """Return a context that serves the folder's certificate, and its successor once the files change.

    The files are looked at when a client shakes hands, so a renewal needs neither a timer nor a restart.
    While new files cannot be used (a pair half written), the old certificate goes on being served.

    Args:
        folder: holds `tls.crt` (the chain) and `tls.key`.

    Raises:
        OSError, ssl.SSLError: the first certificate cannot be read or used.

    """
    served, current = _stamp(folder), _context(folder)

    def renew(connection: ssl.SSLObject, _name: str | None, _context_before: ssl.SSLContext) -> None:
        nonlocal served, current
        try:
            stamp = _stamp(folder)
            if stamp != served:
                current = _context(folder)
                served = stamp
                log.info("serving the renewed certificate of %s", folder)
        except (OSError, ssl.SSLError) as error:
            log.warning("still serving the old certificate: %s of %s: %s", CERTIFICATE, folder, error)
        connection.context = current

    outer = _context(folder)
    outer.sni_callback = renew
    return outer


def _context(folder: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / CERTIFICATE, folder / KEY)
    return context


def _stamp(folder: Path) -> tuple[tuple[int, int, int], ...]:
    """Return what differs after a file was written or replaced."""
    found = (os.stat(folder / name) for name in (CERTIFICATE, KEY))  # noqa: PTH116 - one call a handshake
    return tuple((stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in found)
