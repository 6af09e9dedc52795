"""HTTP on this machine, whatever proxy the environment names."""

from __future__ import annotations

import urllib.request
from typing import Any


def opened(request: urllib.request.Request, seconds: float) -> Any:
    """Return a response from loopback; raise as urllib does where there is none."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=seconds)
