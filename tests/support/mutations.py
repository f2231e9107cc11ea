"""Trace files as they come out of full disks, killed jobs, odd tools and ill will: small traces and their mishaps."""

from __future__ import annotations

import gzip
import itertools
import json
import re
from collections.abc import Callable
from random import Random
from typing import Any

_SCALAR = re.compile(rb'(?<=[:\[] )(?:-?\d[\d.e+]*|"(?:[^"\\]|\\.)*"|null|true|false)')
_VALUES = (
    b"null",
    b"NaN",
    b"-Infinity",
    b"inf",
    b"-1",
    b"0",
    b"1e999",
    b"1e308",
    b"-1e17",
    b"9" * 30,
    b"9" * 5000,
    b'""',
    b'"' + b"x" * 5000 + b'"',
    b'"\\ud800"',
    b'"\xff\xfe"',
    b"[]",
    b"{}",
    b"[" * 2000,
    b'{"a": ' * 2000,
    b"true",
)
_TOKENS = (b"[", b"]", b"{", b"}", b'"', b",", b":", b"\\", b"},{", b"}, {", b"]}", b"\x00", b"\n", b'"traceEvents": [')
_MODERN = ("cpu_op", "cuda_runtime", "kernel", "user_annotation", "python_function", "gpu_memcpy", "ac2g")
_OLD = ("Operator", "Runtime", "Kernel", "Memcpy", "async")
_COLLECTIVE = {
    "Collective name": "allreduce",
    "In msg nelems": 64,
    "Group size": 2,
    "Process Group Name": "0",
    "Process Group Ranks": "[0, 1]",
    "Seq": 3,
    "External id": 7,
}


def small_trace(random: Random) -> bytes:
    """A trace of a few dozen events, of any year and layout; JSON, not compressed."""
    categories = random.choice((_MODERN, _OLD))
    start = random.choice((0.0, 4_348_037_261_692.336, 1_669_783_687_464_181))
    document: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "some device"}]}
    if random.random() < 0.7:
        group = {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 2, "ranks": [0, 1]}
        document["distributedInfo"] = {"backend": "nccl", "rank": 1, "world_size": 2, "pg_config": [group]}
    events = [_event(random, categories, start, number) for number in range(random.randrange(3, 40))]
    events += [_step(start, categories, number) for number in range(3)]
    document["traceEvents"] = events
    if random.random() < 0.5:
        document["baseTimeNanoseconds"] = 1_790_857_026_000_000_000
    document["traceName"] = "t.json"
    text: object = document if random.random() < 0.9 else events
    return json.dumps(text, indent=random.choice((None, 1, 2))).encode()


def _event(random: Random, categories: tuple[str, ...], start: float, number: int) -> dict[str, Any]:
    category = random.choice(categories)
    name = random.choice(
        ("aten::mm", "ncclDevKernel_AllReduce", "gloo:all_reduce", "torch/nn/m.py(7): f", "record_param_comms")
    )
    device = category.lower().endswith(("kernel", "memcpy"))
    event: dict[str, Any] = {"ph": "s" if category in ("ac2g", "async") else "X", "cat": category, "name": name}
    event |= {"pid": 0 if device else 4711, "tid": 7 if device else random.choice((4711, 4712))}
    event |= {"ts": start + number * 10, "dur": random.randrange(40)}
    return {
        **event,
        "args": random.choice(({}, {"Ev Idx": number}, {"a": [{"b": 1}, {"c": [2, {"d": "},{"}]}]}, _COLLECTIVE)),
    }


def _step(start: float, categories: tuple[str, ...], number: int) -> dict[str, Any]:
    category = "user_annotation" if categories is _MODERN else "Operator"
    times = {"ts": start + number * 100, "dur": 99.5}
    return {"ph": "X", "cat": category, "name": f"ProfilerStep#{number}", "pid": 4711, "tid": 4711, **times}


# --- mutations: bytes -> bytes ---


def _place(data: bytes, random: Random) -> int:
    return random.randrange(len(data) + 1)


def flip(data: bytes, random: Random) -> bytes:
    """Other bytes in a few places."""
    text = bytearray(data or b"x")
    for _ in range(random.choice((1, 1, 1, 3, 30))):
        text[random.randrange(len(text))] = random.randrange(256)
    return bytes(text)


def delete(data: bytes, random: Random) -> bytes:
    """A part is missing."""
    at = _place(data, random)
    return data[:at] + data[at + random.choice((1, 2, 10, 100, 4096)) :]


def insert(data: bytes, random: Random) -> bytes:
    """Something stands in between."""
    at = _place(data, random)
    noise = bytes(random.randrange(256) for _ in range(random.choice((1, 4, 50))))
    return data[:at] + random.choice((*_TOKENS, noise, b"\x00" * 4096)) + data[at:]


def truncate(data: bytes, random: Random) -> bytes:
    """The end is missing."""
    return data[: _place(data, random)]


def behead(data: bytes, random: Random) -> bytes:
    """The beginning is missing."""
    return data[_place(data, random) :]


def repeat(data: bytes, random: Random) -> bytes:
    """A part stands there twice."""
    first, last = sorted((_place(data, random), _place(data, random)))
    return data[:last] + data[first:]


def swap_values(data: bytes, random: Random) -> bytes:
    """Values of another type, or absurd ones."""
    found = list(_SCALAR.finditer(data, 0, 2_000_000))
    for one in sorted(
        random.sample(found, min(len(found), random.choice((1, 1, 5, 50)))), key=lambda one: -one.start()
    ):
        data = data[: one.start()] + random.choice(_VALUES) + data[one.end() :]
    return data


def add_behind(data: bytes, random: Random) -> bytes:
    """Something follows."""
    return data + random.choice((b"\x00" * 100, b"garbage", data[:1000], b"]}"))


def huge_world(data: bytes, random: Random) -> bytes:
    """More workers are stated than there are accelerators on earth."""
    said = b'"distributedInfo": {"rank": 0, "world_size": %d}, ' % random.choice((200_000, 20_000_000, 2**31 - 1))
    return _beside_events(data, said)


def escaped_quotes(data: bytes, random: Random) -> bytes:
    """A record that is kept as text, and consists of quotes."""
    quotes = b'\\\\\\"' * random.choice((100, 5_000))
    return _beside_events(data, b'"distributedInfo": "{' + quotes + b'", ')


def own_threads(data: bytes, random: Random) -> bytes:
    """Every event stands on a thread of its own."""
    numbers = itertools.count(random.choice((0, 5000, 2**40)))
    return re.sub(rb'(?<="tid": )\d+', lambda _: b"%d" % next(numbers), data)


def negative_durations(data: bytes, random: Random) -> bytes:
    """Some events end before they begin."""
    least = random.choice((-1, -2, -(10**9)))
    return re.sub(rb'(?<="dur": )[\d.]+', lambda found: b"%d" % least if random.random() < 0.3 else found[0], data)


def _beside_events(data: bytes, text: bytes) -> bytes:
    return data.replace(b'"traceEvents": [', text + b'"traceEvents": [', 1)


EXCESSES: tuple[Callable[[bytes, Random], bytes], ...] = (huge_world, escaped_quotes, own_threads, negative_durations)
MUTATIONS: tuple[Callable[[bytes, Random], bytes], ...] = (
    flip,
    delete,
    insert,
    truncate,
    behead,
    repeat,
    swap_values,
    swap_values,
    add_behind,
    *EXCESSES,
)


def mutated(data: bytes, random: Random) -> bytes:
    """A trace file after one to three mishaps, of its text or of what it was packed into."""
    for _ in range(random.choice((1, 1, 2, 3))):
        data = random.choice(MUTATIONS)(data, random)
    if random.random() < 0.3:
        data = gzip.compress(data, compresslevel=1)
        if random.random() < 0.7:
            data = random.choice((flip, delete, insert, truncate, repeat, add_behind))(data, random)
    return data
