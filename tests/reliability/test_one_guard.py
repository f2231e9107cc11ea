"""Everything of ours that somebody else's code calls goes through one border: what fails there stays there."""

from __future__ import annotations

import ast
import gc
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import eroica.worker
from eroica.settings import Settings
from eroica.wire.beat import FAILED, ORDER_FAILED, WINDOW, BeatReader, BeatWriter, Order
from eroica.worker import attach, import_watch
from eroica.worker.answering import Answering
from eroica.worker.capture import Capturer
from eroica.worker.hooks import Guest
from eroica.worker.session import CollectionLog, Session, StackSampler

# where everything may be caught, how often, and why it is not a second border
CATCH_ALL = {
    "guard.py": 4,  # the border
    "plain_iterations.py": 2,  # the same border, written out for the hot path
    "import_watch.py": 3,  # before the border can be imported
    "session.py": 1,  # inside the border: costs a window its stacks only
    "answering.py": 1,  # inside the border: costs an answer only, and the agent learns why
}
# what hands a function of ours to somebody else, and how often we do so
DOORS = {
    "register": 2,  # atexit; a file to be polled
    "register_at_fork": 1,
    "register_optimizer_step_post_hook": 1,
    "Thread": 0,
    "start_new_thread": 2,  # of `pristine.Thread` and `Listener`, whose work is always led through the guard
    "ref": 2,  # an optimizer's end, which runs no Python; its first parameter, without any function
    "signal": 0,
    "settrace": 0,
    "setprofile": 0,
    "addaudithook": 0,
}


@pytest.fixture
def guest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Guest]:
    monkeypatch.setenv("EROICA_RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("EROICA_JOB", "x")
    one = Guest()
    yield one
    assert one.guard.failure is not None and "no such luck" in one.guard.failure
    assert one.guard.stack.count("no such luck") >= 1
    (log,) = (tmp_path / "run" / "log").glob("worker-*.log")
    assert log.read_text().count("stops watching") == 1


def breaks(*_: object, **__: object) -> None:
    raise RuntimeError("no such luck")


class Optimizer:
    """Something that can be referred to weakly."""


def test_a_hook_that_fails(guest: Guest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guest, "_add_optimizer", breaks)
    guest.hooks.stepped(Optimizer())
    guest.hooks.stepped(Optimizer())


def test_a_registration_that_fails(guest: Guest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eroica.worker.hooks.load_settings", breaks)
    guest.hooks.stepped(Optimizer())
    assert guest._joining is not None and guest._joining.join(20)
    guest.hooks.stepped(Optimizer())


def test_a_loader_hook_that_fails(guest: Guest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guest, "_beats", SimpleNamespace(touch=breaks))
    guest.hooks.loaded(object())


def test_a_profiler_that_we_make_way_for_starts_whatever_fails_with_us(guest: Guest) -> None:
    guest._capturer = SimpleNamespace(make_way=breaks, collapse=lambda text: None)  # type: ignore[assignment]
    assert guest.door._passing("_enable_profiler", lambda: "profiling")() == "profiling"


class Profiler:
    """One that only notes what it is told."""

    on_device = False

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.calls.append(name) or 0


@pytest.fixture
def profiler(guest: Guest, tmp_path: Path) -> Iterator[Profiler]:
    """That of a window of iterations 10 to 13, open at the guest."""
    one = Profiler()
    guest._beats = BeatWriter.create(tmp_path, {})
    guest._capturer = Capturer(
        {}, guest._answer, SimpleNamespace(exists=True, taken=False, used=True), guest._in_background, guest.guard.run,
        Settings(), make_tracer=lambda **_: one,
    )  # type: ignore[arg-type]  # fmt: skip
    guest._capturer.take(Order(5, WINDOW, 0, 10, 13, 0, 0, str(tmp_path)), 9)
    pass_boundaries(guest, 9, 10)
    assert one.calls == ["prepare", "start"]
    yield one
    reader = BeatReader.open(guest._beats.path)
    seen, told = reader.beat(), reader.result()
    reader.close()
    guest._beats.remove()
    assert seen is not None and seen.state == FAILED
    assert told.status == ORDER_FAILED and "no such luck" in told.note


def pass_boundaries(guest: Guest, first: int, last: int) -> None:
    assert guest._capturer is not None
    for iteration in range(first, last + 1):
        guest.guard.run(guest._capturer.boundary, iteration, time.monotonic_ns())


@pytest.mark.parametrize("name", ["park", "settled", "close"])
def test_a_window_whose_end_fails_is_shown_and_records_nothing_any_more(
    guest: Guest, profiler: Profiler, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(Session, name, breaks)
    pass_boundaries(guest, 11, 20)
    assert profiler.calls[-1] == "pause"
    assert "stop" not in profiler.calls


def stepped(guest: Guest) -> None:
    guest.hooks.stepped(object())


def loaded(guest: Guest) -> None:
    guest.hooks.loaded(object())


def profiled(guest: Guest) -> None:
    assert guest.door._passing("_enable_profiler", lambda: "profiling")() == "profiling"


@pytest.mark.parametrize("event", [stepped, loaded, profiled])
def test_a_failure_in_another_thread_stops_the_profiler_at_the_next_event_of_its_own(
    guest: Guest, profiler: Profiler, event: Callable[[Guest], None]
) -> None:
    guest._in_background(breaks).join()
    assert profiler.calls == ["prepare", "start"]
    event(guest)
    assert profiler.calls == ["prepare", "start", "pause", "stop", "drop"]
    event(guest)
    assert len(profiler.calls) == 5


def raise_from_handlers_within(act: Callable[[], object], tries: int) -> int:
    """How many of so many exceptions of a signal's handler are lost, if they come while something is done."""

    class Late(Exception):
        pass

    def handler(*_: object) -> None:
        raise Late

    before, lost = signal.signal(signal.SIGALRM, handler), 0
    try:
        for number in range(tries):
            end = time.perf_counter() + 0.02
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0002 + number % 97 * 3e-6)
                while time.perf_counter() < end:
                    act()
                lost += 1
            except Late:
                pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return lost


def test_no_exception_of_a_handler_is_lost_in_a_garbage_collection_that_we_listen_to(capsys: Any) -> None:
    others = gc.callbacks[:]  # a library of other tests listens in Python, where exceptions are lost
    gc.callbacks.clear()
    collections = CollectionLog()
    collections.on()
    try:
        assert raise_from_handlers_within(lambda: gc.collect(0), 300) == 0
    finally:
        collections.off()
        gc.callbacks.extend(others)
    assert collections.runs
    assert capsys.readouterr().err == ""


def test_no_exception_of_a_handler_is_lost_where_an_optimizer_goes_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    class Optimizer:
        pass

    monkeypatch.setenv("EROICA_RUN_DIR", str(tmp_path))
    guest = Guest()
    guest._join = lambda _: None  # type: ignore[method-assign]

    def come_and_go() -> None:
        optimizer = Optimizer()
        guest._add_optimizer(optimizer)
        del optimizer

    assert raise_from_handlers_within(come_and_go, 300) == 0
    assert capsys.readouterr().err == ""


def test_threads_of_ours(guest: Guest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    guest._in_background(breaks).join()
    assert capsys.readouterr().err == ""


def test_the_thread_that_answers(guest: Guest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    answering = Answering(tmp_path, guest.guard.run)
    monkeypatch.setattr(answering, "_hear", breaks)
    assert answering.start() and answering._thread is not None
    answering._ask.write_bytes(b"A")
    assert answering._thread.join(5)
    assert capsys.readouterr().err == ""


def test_forks_and_the_end(guest: Guest, monkeypatch: pytest.MonkeyPatch) -> None:
    attachment = attach.Attachment()
    attachment.guest = guest
    monkeypatch.setattr(guest, "after_fork", breaks)
    attachment._after_fork()


def test_attaching(guest: Guest, monkeypatch: pytest.MonkeyPatch) -> None:
    attachment = attach.Attachment()
    attachment.guest = guest
    monkeypatch.setattr(attachment, "attach", breaks)
    monkeypatch.setattr(attach, "_attachment", attachment)
    attach.attach_to(import_watch.OPTIMIZERS)
    attach.step()  # a no-op from here on


def test_a_sampler_that_fails_costs_its_window_the_stacks_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    order = Order(1, 2, 0, 1, 2, 0, 100, "")
    session = Session(order, SimpleNamespace(), lambda function, *arguments: function(*arguments))  # type: ignore[arg-type]
    sampler = session._sampler
    assert isinstance(sampler, StackSampler)
    monkeypatch.setattr(sampler, "_sample", breaks)
    sampler.start()
    sampler._thread.join(5)
    assert sampler.failure == "RuntimeError: no such luck"


# ---------------------------------------------------------------------- no other way in or out


def sources() -> Iterator[tuple[str, ast.Module]]:
    root = Path(eroica.worker.__file__).parent
    for path in sorted(root.rglob("*.py")):
        yield str(path.relative_to(root)), ast.parse(path.read_text())


def test_everything_is_caught_in_one_place() -> None:
    found: Counter[str] = Counter()
    for name, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.ExceptHandler):
                caught = {each.id for each in ast.walk(node.type) if isinstance(each, ast.Name)} if node.type else {"*"}
                passed_on = any(isinstance(each, ast.Raise) and each.exc is None for each in node.body)
                if caught & {"Exception", "BaseException", "*"} and not passed_on:
                    found[name] += 1
    assert found == CATCH_ALL


def test_nobody_else_is_given_functions_of_ours_unnoticed() -> None:
    """A new way in fails here: lead it through the guard, test it above, and count it."""
    counts = dict.fromkeys(DOORS, 0)
    callbacks: list[str] = []
    for name, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("partial") and node.args:
                node = ast.Call(node.args[0], node.args[1:], node.keywords)  # noqa: PLW2901 - what it will call
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if node.func.attr in counts:
                    counts[node.func.attr] += 1
                if node.func.attr in ("append", "extend", "insert") and ast.unparse(node.func.value) in (
                    "gc.callbacks", "sys.meta_path",
                ):  # fmt: skip
                    callbacks.append(f"{name}: {ast.unparse(node.func.value)}")
    assert counts == DOORS
    assert callbacks == ["import_watch.py: sys.meta_path", "session.py: gc.callbacks"]


def test_a_python_that_cannot_read_us_starts_as_always(tmp_path: Path) -> None:
    package = tmp_path / "eroica" / "worker"
    package.mkdir(parents=True)
    for place in (package.parent, package):
        (place / "__init__.py").write_text("")
    (package / "import_watch.py").write_text("from __future__ import what_came_later\n")
    bootstrap = eroica.worker.bootstrap_directory()
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import sys; sys.path[:0] = sys.argv[1:]; import sitecustomize; print('runs')",
         str(bootstrap), str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "runs\n", "")
