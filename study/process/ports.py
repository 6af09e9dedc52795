"""TCP ports of this machine."""

from __future__ import annotations

import random
import socket

FIRST_PORT, PORTS = 20000, 12000
"""Where ranks meet: below the kernel's ephemeral range, which starts at 32768. It gives these to no other process."""


def is_free(port: int, host: str = "", reuse: bool = False) -> bool:
    """Whether a server may listen here. reuse: also where connections of an earlier one are still closing."""
    with socket.socket() as probe:
        if reuse:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError):
            return False
        return True


def meeting_port() -> int:
    """Return a port of 127.0.0.1 that is free now, for ranks that this process starts: the first binds it later."""
    while True:
        port = FIRST_PORT + random.randrange(PORTS)
        if is_free(port, "127.0.0.1"):
            return port
