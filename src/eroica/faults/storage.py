"""A server for one worker: answers requests for blocks and takes lines, until it is told to be slow or silent.

    python -I -S storage.py PID SECONDS [NEXT_DELAY_S [DELAY_S]]

Prints its port and listens on localhost only. From SIGUSR1 on it takes requests and answers none, for `SECONDS` (0 =
for good). Each answer takes `DELAY_S` longer; with SIGUSR2 `NEXT_DELAY_S` instead, with the next one `DELAY_S` again.
It ends when process PID does, or at SIGTERM. Standard library only, and no site packages.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BLOCK = bytes(4096)
ANSWERING = threading.Event()
DELAYS_S = [0.0, 0.0]
"""Now, and after the next SIGUSR2."""


class Blocks(BaseHTTPRequestHandler):
    """Every block is there and empty."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """One block, as soon as the server answers at all."""
        self._answer()

    def do_POST(self) -> None:
        """Take a line; the answer is as long as a block."""
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.close_connection = True
        self._answer()

    def _answer(self) -> None:
        ANSWERING.wait()
        time.sleep(DELAYS_S[0])
        self.send_response(200)
        self.send_header("Content-Length", str(len(BLOCK)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(BLOCK)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def main() -> None:
    """Serve until the worker has ended."""
    pid, seconds = int(sys.argv[1]), float(sys.argv[2])
    DELAYS_S[:] = (float(sys.argv[4]) if len(sys.argv) > 4 else 0.0, float(sys.argv[3]) if len(sys.argv) > 3 else 0.0)
    ANSWERING.set()

    def fall_silent(*_: object) -> None:
        ANSWERING.clear()
        if seconds > 0:
            threading.Timer(seconds, ANSWERING.set).start()

    signal.signal(signal.SIGUSR1, fall_silent)
    signal.signal(signal.SIGUSR2, lambda *_: DELAYS_S.reverse())
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)  # a signal just before the wait below ends it, so that its handler runs
    server = ThreadingHTTPServer(("127.0.0.1", 0), Blocks)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    worker = os.pidfd_open(pid)
    while worker not in select.select([worker, woken], [], [])[0]:
        os.read(woken, 64)
    os._exit(0)


if __name__ == "__main__":
    main()
