"""TCP ports of this machine."""

from __future__ import annotations

import socket


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
