"""A proxy before an MLflow server that fails as networks and servers do: before the effect, after it, or in between."""

from __future__ import annotations

import http.client
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FAULTS = ("before", "after", "cut", "gateway")
"""before: 500, nothing done. after: done, then 500. cut: done, and the connection breaks. gateway: 502 with HTML."""


@dataclass
class Trouble:
    """Which requests fail: a share of all of them, drawn with a seed. Counts what it did; `away`: nobody answered."""

    server: int
    share: float = 0.0
    dice: random.Random = field(default_factory=lambda: random.Random(1))
    done: Counter[str] = field(default_factory=Counter)

    def draw(self) -> str | None:
        """Return how the next request fails; None: it does not."""
        return self.dice.choice(FAULTS) if self.dice.random() < self.share else None


@contextmanager
def proxy(port: int, trouble: Trouble) -> Iterator[None]:
    """Listen on this port of loopback for as long as the block runs."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            fault = trouble.draw()
            answer = None if fault in ("before", "gateway") else self.forward(body)
            trouble.done[fault or ("passed" if answer else "away")] += 1
            if fault == "cut":
                self.close_connection = True
                self.connection.close()
                return
            if fault is not None or answer is None:
                status, kind, text = (
                    (502, "text/html", b"<html>Bad Gateway")
                    if fault == "gateway"
                    else (500, "application/json", b'{"error_code": "INTERNAL_ERROR", "message": "out of luck"}')
                )
            else:
                status, kind, text = answer
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def forward(self, body: bytes) -> tuple[int, str, bytes] | None:
            connection = http.client.HTTPConnection("127.0.0.1", trouble.server, timeout=900)
            kept = {name: value for name, value in self.headers.items() if name.lower() != "host"}
            try:
                connection.request(self.command, self.path, body, kept)
                got = connection.getresponse()
                return got.status, got.headers.get("Content-Type", ""), got.read()
            except (OSError, http.client.HTTPException):
                return None
            finally:
                connection.close()

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any  # noqa: N815 (names of the standard library)

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing."""

    listening = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    listening.daemon_threads = True
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        listening.shutdown()
        listening.server_close()
