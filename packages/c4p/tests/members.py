"""Starts the members of a group as processes and collects what each returns."""

from __future__ import annotations

import multiprocessing
import os
import queue
import tempfile
import time
import traceback
from collections.abc import Callable
from typing import Any

import c4p


class Failed(Exception):
    """A member's traceback."""


def _member(function: Callable[..., Any], rank: int, size: int, folder: str, results: Any, arguments: tuple) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        results.put((rank, True, function(rank, size, folder, *arguments)))
    except BaseException:
        results.put((rank, False, traceback.format_exc()))


def run(function: Callable[..., Any], size: int, *arguments: Any, timeout_s: float = 60.0) -> list[Any]:
    """What `function(rank, size, folder, *arguments)` returned in each of `size` processes, by rank."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        members = [
            context.Process(target=_member, args=(function, rank, size, folder, results, arguments), daemon=True)
            for rank in range(size)
        ]
        for member in members:
            member.start()
        try:
            answers = sorted(_answers(results, members, timeout_s))
        finally:
            for member in members:
                member.join(5)
                member.kill()
    failures = [text for _, good, text in answers if not good]
    if failures:
        raise Failed("\n".join(failures))
    return [value for _, _, value in answers]


def _answers(results: Any, members: list, timeout_s: float) -> list[tuple[int, bool, Any]]:
    """One answer of each member; of one that ended without, that it did."""
    answers: list = []
    until = time.monotonic() + timeout_s
    while len(answers) < len(members):
        try:
            answers.append(results.get(timeout=0.2))
        except queue.Empty:
            known = {rank for rank, _, _ in answers}
            dead = [r for r, m in enumerate(members) if r not in known and m.exitcode is not None]
            if dead and results.empty():
                answers += [(r, True, f"exit code {members[r].exitcode}") for r in dead]
            if time.monotonic() > until:
                raise Failed(f"members {sorted(set(range(len(members))) - known)} gave no answer") from None
    return answers


def group(rank: int, size: int, folder: str, **options: Any) -> c4p.Group:
    options.setdefault("timeout_s", 20.0)
    return c4p.Group(rank, size, c4p.Folder(folder), c4p.Options(**options))
