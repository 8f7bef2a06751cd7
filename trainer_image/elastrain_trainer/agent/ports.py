"""Free ports, held open so that nobody takes them before the round that names them begins."""

from __future__ import annotations

import socket


class HeldPorts:
    """Two ports for the next round: torchrun's rendezvous and the store of the process group."""

    def __init__(self, address: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._sockets = [socket.socket(family, socket.SOCK_STREAM) for _ in range(2)]
        for held in self._sockets:
            held.bind((address, 0))

    def to_json(self) -> dict[str, int]:
        """Return them as in a state report."""
        rendezvous, store = (held.getsockname()[1] for held in self._sockets)
        return {"rendezvous": rendezvous, "store": store}

    def release(self) -> None:
        """Let go of them, just before a program listens on them."""
        for held in self._sockets:
            held.close()
