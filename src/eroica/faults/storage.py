"""A storage server for one worker of the demo: answers requests for blocks, until it is told to fall silent.

    python -I -S storage.py PID SECONDS

Prints its port and listens on localhost only. From SIGUSR1 on it takes requests and answers none, for `SECONDS` (0 =
for good). It ends when process PID does, or at SIGTERM. Standard library only, and no site packages.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BLOCK = bytes(4096)
ANSWERING = threading.Event()


class Blocks(BaseHTTPRequestHandler):
    """Every block is there and empty."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """One block, as soon as the server answers at all."""
        ANSWERING.wait()
        self.send_response(200)
        self.send_header("Content-Length", str(len(BLOCK)))
        self.end_headers()
        self.wfile.write(BLOCK)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def main() -> None:
    """Serve until the worker has ended."""
    pid, seconds = int(sys.argv[1]), float(sys.argv[2])
    ANSWERING.set()

    def fall_silent(*_: object) -> None:
        ANSWERING.clear()
        if seconds > 0:
            threading.Timer(seconds, ANSWERING.set).start()

    signal.signal(signal.SIGUSR1, fall_silent)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Blocks)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    select.select([os.pidfd_open(pid)], [], [])
    os._exit(0)


if __name__ == "__main__":
    main()
