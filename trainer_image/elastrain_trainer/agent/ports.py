"""Free ports, held so that nobody takes them before those who are meant to listen on them do."""

from __future__ import annotations

import socket


class HeldPorts:
    """Two ports for a round: the rendezvous, and the store of the process group.

    They are bound, with SO_REUSEADDR, and never listened on. So the kernel gives them to nobody who asks for any
    free port, and refuses them to others; but torch's stores, which set the same option, can listen on them at any
    moment. They need not be let go of beforehand, when somebody else might be faster.
    """

    def __init__(self, address: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._sockets = [socket.socket(family, socket.SOCK_STREAM) for _ in range(2)]
        for held in self._sockets:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind((address, 0))

    def to_json(self) -> dict[str, int]:
        """Return them as in a state report."""
        rendezvous, store = (held.getsockname()[1] for held in self._sockets)
        return {"rendezvous": rendezvous, "store": store}

    def release(self) -> None:
        """Let go of them, once the round that used them is over."""
        for held in self._sockets:
            held.close()
