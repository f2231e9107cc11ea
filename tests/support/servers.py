"""A small HTTP server on loopback that answers as a test says."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = Callable[[str, Message, bytes], tuple[int, Mapping[str, str], bytes]]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    answer: Answer


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        status, headers, text = self.server.answer(self.path, self.headers, body)
        if not status:
            return
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Stay silent."""


@contextmanager
def serving(answer: Answer, trust: ssl.SSLContext | None = None) -> Iterator[str]:
    """Its address.

    Args:
        answer: From path, headers and body of a post to status, headers and body; status 0 is no answer.
        trust: With it, HTTPS is spoken.
    """
    server = _Server(("127.0.0.1", 0), _Handler)
    server.answer = answer
    if trust is not None:
        server.socket = trust.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"{'http' if trust is None else 'https'}://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
