"""Clients without the group's token at a member's port: they cost the training process nothing that grows."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tests.members import group, run

from c4p.wire import Header, Kind

FEW = 34  # c4p.admission: MOST_PENDING that are kept, AT_ONCE that are looked at; and the pipe to the crowd
CROWD = """
import resource, socket, sys, time
port, words, seconds = int(sys.argv[1]), bytes.fromhex(sys.argv[2]), float(sys.argv[3])
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
calls = []
for at in range(800):
    call = socket.socket(); call.setblocking(False); call.connect_ex(("127.0.0.1", port)); calls.append(call)
    if at % 50 == 0: time.sleep(0.02)
end = time.monotonic() + seconds
while time.monotonic() < end:
    for call in calls:
        try: words and call.send(words)
        except OSError: pass
    time.sleep(0.3)
"""
GUESSES = {
    "silence": b"",
    "a byte": b" ",
    "half a header": b"C4P1\x01",
    "another protocol": b"GET / HTTP/1.1\r\n\r\n",
    "a wrong token": Header(Kind.HELLO, piece=1, length=16).packed() + b"x" * 16,
    "a huge length": Header(Kind.HELLO, piece=1, length=2**32 - 1).packed() + b"x" * 16,
    "data before the greeting": Header(Kind.DATA, length=1 << 20).packed() + b"x" * 4096,
    "an unknown kind": struct.pack("<4sBxxxIIII", b"C4P1", 200, 0, 0, 0, 0) + b"x" * 16,
}


def cost() -> tuple[int, int, int]:
    """Threads, descriptors and kilobytes of this process."""
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd")), resident  # noqa: PTH208


def attacked(rank: int, size: int, folder: str, words: bytes) -> tuple[int, int, int] | None:
    """Return the most that a crowd cost member 0, while collectives went on."""
    with group(rank, size, folder) as members:
        array = np.full(10_000, rank, dtype=np.float32)
        members.allreduce(array)
        end, most, before = time.monotonic() + 4.0, (0, 0, 0), cost()
        if rank == 0:
            port = json.loads((Path(folder) / "key-c4p-0").read_text())[1]
            crowd = subprocess.Popen([sys.executable, "-c", CROWD, str(port), words.hex(), "3"])
            before = cost()
        going = True
        while going:
            array[:] = rank
            members.allreduce(array)
            assert array[0] == sum(range(size))
            most = tuple(map(max, most, cost()))  # type: ignore[assignment]
            flag = np.array([time.monotonic() < end], dtype=np.uint8)
            going = bool(members.allreduce(flag, "min")[0])
            time.sleep(0.01)
        if rank:
            return None
        crowd.wait(30)
        return tuple(now - then for now, then in zip(most, before, strict=True))  # type: ignore[return-value]


@pytest.mark.parametrize("words", GUESSES.values(), ids=GUESSES.keys())
def test_strangers_cost_a_member_no_thread_no_memory_and_few_descriptors(words: bytes) -> None:
    threads, descriptors, kilobytes = run(attacked, 2, words)[0]
    assert threads == 0
    assert descriptors <= FEW
    assert kilobytes < 4096
