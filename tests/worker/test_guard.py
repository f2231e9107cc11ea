"""The border: the first failure ends everything of ours and nothing of the user's."""

from __future__ import annotations

import functools
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from eroica.worker import import_watch
from eroica.worker.guard import Guard


class Job:
    def __init__(self, place: Path, raises: bool = False) -> None:
        self.log = place / "log" / "worker.log"
        self.shown: list[str] = []
        self.guard = Guard(lambda: self.log, self.shown.append, raises)


def broken(*_: object) -> None:
    raise ValueError("the disk is made of cheese")


def test_a_failure_is_kept_logged_with_its_stack_and_shown_once(tmp_path: Path) -> None:
    job = Job(tmp_path)
    assert job.guard.run(broken) is None
    assert job.guard.run(broken) is None
    assert job.guard.failure == "ValueError: the disk is made of cheese"
    assert job.shown == ["ValueError: the disk is made of cheese"]
    text = job.log.read_text()
    assert text.count("stops watching") == 1
    assert "in broken" in text


def test_after_a_failure_nothing_runs_any_more(tmp_path: Path) -> None:
    job = Job(tmp_path)
    calls: list[int] = []
    job.guard.run(calls.append, 1)
    job.guard.run(broken)
    job.guard.run(calls.append, 2)
    job.guard.border(calls.append)(3)
    assert calls == [1]


def test_the_hot_path_is_behind_the_same_border(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.guard.border(broken)("batch", "ignored", {})
    assert job.guard.failure is not None


def test_what_is_owed_is_tried_after_a_failure_until_it_is_done(tmp_path: Path) -> None:
    job, calls, tries = Job(tmp_path), [], []

    def pay() -> bool:
        tries.append(len(tries))
        entry(None)  # it leads here itself
        return len(tries) == 2

    entry = job.guard.border(calls.append)
    job.guard.owe(pay)
    entry(1)
    assert (calls, tries) == ([1], [])
    job.guard.run(broken)
    for _ in range(3):
        entry(2)
    assert (calls, tries) == ([1], [0, 1])


def test_what_is_owed_and_fails_is_let_be(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.guard.owe(broken)  # type: ignore[arg-type]
    entry = job.guard.border(broken)
    for _ in range(3):
        entry()
    assert job.shown == ["ValueError: the disk is made of cheese"]
    assert job.guard.stack.count("and at last") == 1


def test_a_log_that_cannot_be_written_harms_nobody(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("in the way")
    job = Job(tmp_path)
    job.guard.run(broken)
    assert job.shown == ["ValueError: the disk is made of cheese"]
    assert "and then" in job.guard.stack


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_interrupts_are_the_users(tmp_path: Path, error: type[BaseException]) -> None:
    job = Job(tmp_path)

    def interrupted() -> None:
        raise error

    with pytest.raises(error):
        job.guard.run(interrupted)
    assert job.guard.failure is None


class OutOfTimeError(RuntimeError):
    pass


def give_up(_signal: int, _frame: FrameType | None) -> None:
    raise OutOfTimeError


def give_up_too(_given: tuple[object, ...]) -> None:
    raise OutOfTimeError


def give_up_deep_down(_signal: int, _frame: FrameType | None) -> None:
    next(iter([int("the user's own mistake")]))


class Trainer:
    def give_up(self, *_: object) -> None:
        raise OutOfTimeError


@pytest.fixture
def timer() -> Iterator[Callable[[Any], None]]:
    """Sets a handler of SIGVTALRM and the timer that sends it."""
    before = signal.getsignal(signal.SIGVTALRM)

    def set_it(handler: Any) -> None:
        signal.signal(signal.SIGVTALRM, handler)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.002)

    yield set_it
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    signal.signal(signal.SIGVTALRM, before)


def work_for_long(*_: object) -> None:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        sum(range(100))


@pytest.mark.parametrize(
    "handler", [give_up, Trainer().give_up, functools.partial(give_up), lambda *given: give_up_too(given)]
)
@pytest.mark.parametrize("border", [True, False])
def test_what_a_signal_handler_of_the_user_raises_inside_our_code_is_theirs(
    tmp_path: Path, timer: Callable[[Any], None], handler: Any, border: bool
) -> None:
    job = Job(tmp_path)
    ours = job.guard.border(work_for_long) if border else functools.partial(job.guard.run, work_for_long)
    timer(handler)
    with pytest.raises(OutOfTimeError):
        ours()
    assert job.guard.failure is None
    assert not job.log.exists()


def test_a_signal_handler_that_fails_further_down_is_the_users_too(
    tmp_path: Path, timer: Callable[[Any], None]
) -> None:
    job = Job(tmp_path)
    timer(give_up_deep_down)
    with pytest.raises(ValueError, match="own mistake"):
        job.guard.run(work_for_long)
    assert job.guard.failure is None


def test_a_failure_of_ours_in_code_that_others_have_replaced_stays_ours(tmp_path: Path) -> None:
    job = Job(tmp_path)

    def patched(frame: object = None) -> None:
        broken(frame)

    job.guard.run(patched, sys._getframe())
    assert job.shown == ["ValueError: the disk is made of cheese"]


def test_a_hook_that_cannot_be_imported_leaves_the_users_import_alone_and_a_line_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EROICA_RUN_DIR", str(tmp_path))
    monkeypatch.setitem(sys.modules, "eroica.worker.attach", None)  # type: ignore[arg-type]
    import_watch._arrived(import_watch.OPTIMIZERS)
    (log,) = (tmp_path / "log").iterdir()
    assert "eroica.worker.attach" in log.read_text()


def test_a_hook_that_cannot_be_imported_nor_logged_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "eroica.worker.attach", None)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "eroica.worker.guard", None)  # type: ignore[arg-type]
    import_watch._arrived(import_watch.OPTIMIZERS)


COMPILED = """
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from eroica.worker import hooks
guest, seen = hooks.Guest(), []
def stepped(optimizer):
    seen.append(hooks.monotonic_ns())
register_optimizer_step_post_hook(guest.guard.border(stepped))
parameter = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([parameter], lr=0.1)
parameter.sum().backward()
step = torch.compile(lambda: optimizer.step(), backend="eager")
for _ in range(3):
    step()
print(len(seen), guest.guard.failure)
"""


@pytest.mark.jobs
def test_a_compiled_optimizer_step_calls_the_hook_and_warns_of_nothing_of_ours() -> None:
    ran = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, check=True, timeout=120)
    assert ran.stdout == "3 None\n"
    assert "monotonic_ns" not in ran.stderr
