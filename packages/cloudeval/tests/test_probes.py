import itertools
import socket
import threading
import time

import pytest

from cloudeval.runners.expectations import BODY_BYTES, request
from cloudeval.runners.probes import run_handler


@pytest.fixture
def serve():
    """Return a function that serves one answer on loopback, in the given parts, and returns the port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer(parts):
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                try:
                    for part in parts:
                        connection.sendall(part)
                except OSError:
                    pass  # the client has read enough

        def start(*parts):
            threading.Thread(target=answer, args=(itertools.chain(*parts),), daemon=True).start()
            return listener.getsockname()[1]

        yield start


def dripping():
    for _ in range(100):
        yield b"x"
        time.sleep(0.05)


@pytest.mark.parametrize("status, passes", [(200, True), (500, False)])
def test_an_http_probe_does_not_wait_for_the_body(serve, status, passes):
    port = serve([b"HTTP/1.1 %d X\r\n\r\n" % status], dripping())
    began = time.monotonic()
    assert run_handler({"httpGet": {"port": port}}, None, {}, "127.0.0.1", 1) is passes
    assert time.monotonic() - began < 2


def test_a_long_body_is_cut_off_and_a_broken_one_is_no_answer(serve):
    port = serve([b"HTTP/1.1 200 OK\r\n\r\n"], itertools.repeat(b"x" * 65536))
    assert len(request("127.0.0.1", port).text) == BODY_BYTES
    serve([b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", b"short"])
    assert request("127.0.0.1", port).status == 0
    serve([b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", b"whole"])
    assert request("127.0.0.1", port).text == "whole"
