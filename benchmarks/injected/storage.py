"""A server for one worker: answers requests for blocks and takes lines, until it is told to be slow or silent.

    python -I -S storage.py PID [--delay-s S] [--other-delay-s S] [--silent-s S]

Prints its port and listens on localhost only. Each answer takes `delay-s` longer; from SIGUSR2 on `other-delay-s`, from
the next one on `delay-s` again. From SIGUSR1 on it takes requests and answers none, for `silent-s` (0 = for good). It
ends when process PID does, or at SIGTERM. Standard library only, and no site packages.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
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
    parser = argparse.ArgumentParser()
    parser.add_argument("pid", type=int)
    for name in ("--delay-s", "--other-delay-s", "--silent-s"):
        parser.add_argument(name, type=float, default=0.0)
    told = parser.parse_args()
    DELAYS_S[:] = (told.delay_s, told.other_delay_s)
    ANSWERING.set()

    def fall_silent(*_: object) -> None:
        ANSWERING.clear()
        if told.silent_s > 0:
            threading.Timer(told.silent_s, ANSWERING.set).start()

    signal.signal(signal.SIGUSR1, fall_silent)
    signal.signal(signal.SIGUSR2, lambda *_: DELAYS_S.reverse())
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)  # a signal just before the wait below ends it, so that its handler runs
    server = ThreadingHTTPServer(("127.0.0.1", 0), Blocks)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    worker = os.pidfd_open(told.pid)
    while worker not in select.select([worker, woken], [], [])[0]:
        os.read(woken, 64)
    os._exit(0)


if __name__ == "__main__":
    main()
