"""One end of the rival: plain TCP with several sockets and work stealing, without c4p.

Both ends send and receive as fast as they can. Each socket that has room takes the next block, so faster paths carry
more. The program prints what it has received, in Mbit/s, without the first fifth of the time.
"""

from __future__ import annotations

import argparse
import selectors
import socket
import time

BLOCK = bytes(96 * 1024)
SEND_BUFFER_BYTES = 256 * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--own", required=True)
    parser.add_argument("--peer", required=True)
    parser.add_argument("--sockets", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    options = parser.parse_args()
    selector = selectors.DefaultSelector()
    listener = socket.create_server((options.own, 5001), backlog=64)
    for _ in range(options.sockets):
        out = socket.socket()
        out.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        out.bind((options.own, 0))
        until = time.monotonic() + 20
        while out.connect_ex((options.peer, 5001)):
            if time.monotonic() > until:
                raise TimeoutError(f"{options.peer} does not listen")
            time.sleep(0.05)
        out.setblocking(False)
        selector.register(out, selectors.EVENT_WRITE)
    for _ in range(options.sockets):
        into, _ = listener.accept()
        into.setblocking(False)
        selector.register(into, selectors.EVENT_READ)
    began, received, skipped = time.monotonic(), 0, 0
    buffer = bytearray(1 << 20)
    while (passed := time.monotonic() - began) < options.seconds:
        if passed < options.seconds / 5:
            skipped = received
        for key, mask in selector.select(0.1):
            try:
                if mask & selectors.EVENT_READ:
                    received += key.fileobj.recv_into(buffer)  # type: ignore[union-attr]
                else:
                    key.fileobj.send(BLOCK)  # type: ignore[union-attr]
            except OSError:  # no room, or the other end is done
                continue
    print((received - skipped) * 8 / (0.8 * options.seconds) / 1e6)


if __name__ == "__main__":
    main()
