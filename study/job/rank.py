"""The address at which the ranks of a job meet."""

from __future__ import annotations

import socket


def own_address() -> str:
    """Return an address at which other nodes reach this host; Debian's 127.0.1.1 for the own name is not one."""
    try:
        address = socket.gethostbyname(socket.gethostname())
    except OSError:
        address = "127.0.0.1"
    if not address.startswith("127."):
        return address
    import psutil

    for addresses in psutil.net_if_addrs().values():
        for entry in addresses:
            if entry.family == socket.AF_INET and not entry.address.startswith("127."):
                return str(entry.address)
    return address
