"""What pods are told of the coordinator, with certificates that are renewed in place."""

from __future__ import annotations

import logging
from pathlib import Path

from elastrain.kubernetes.manifests import Coordination

log = logging.getLogger(__name__)

FILE = "ca.crt"


class Authority:
    """Reads the certificates that vouch for the coordinator, again whenever their file has changed."""

    def __init__(self, url: str, folder: Path) -> None:
        """Read them for the first time.

        Args:
            url: where pods reach the coordinator, `https://host:port`.
            folder: holds `ca.crt`.

        Raises:
            OSError: they cannot be read.

        """
        self._url = url.rstrip("/")
        self._path = folder / FILE
        self._stamp = self._look()
        self._current = Coordination(self._url, self._path.read_text())

    def __call__(self) -> Coordination:
        """Return what pods are told now; while a new file cannot be read, the old certificates hold."""
        try:
            stamp = self._look()
            if stamp != self._stamp:
                self._current = Coordination(self._url, self._path.read_text())
                self._stamp = stamp
                log.info("%s has changed; pods get the new certificates", self._path)
        except OSError as error:
            log.warning("%s: %s; pods keep the old certificates", self._path, error)
        return self._current

    def _look(self) -> tuple[int, int, int]:
        stat = self._path.stat()
        return stat.st_ino, stat.st_mtime_ns, stat.st_size
