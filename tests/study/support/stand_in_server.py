"""Stands in for `python -m train.serve FD` without torch: `do` of a config says how each attempt is met."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path


def main() -> int:
    connection, first = socket.socket(fileno=int(sys.argv[-1])), True
    while True:
        text, descriptors, _, _ = socket.recv_fds(connection, 1 << 17, 8)
        if not text:
            return 0
        asked = json.loads(text)
        do, *words = Path(asked["arguments"][1]).read_text().split()
        if do == "refuse" and not first:
            return 0
        connection.send(b"begun")
        first = False
        os.write(descriptors[0], f"{do} {asked['arguments'][2:]} {asked['environment'].get('NAME')}\n".encode())
        if do == "exit":
            return int(words[0])
        if do == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if do == "wait":
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
            os.write(descriptors[0], b"ready\n")
            time.sleep(60)
        for descriptor in descriptors:
            os.close(descriptor)
        connection.send(words[0].encode() if words else b"0")
        if do == "leave":
            return 0


if __name__ == "__main__":
    sys.exit(main())
