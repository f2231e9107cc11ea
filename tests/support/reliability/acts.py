"""The disturbances themselves: what a run is started with, and what is done at which moment; what Eroica made of it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from support.reliability.trial import Trial

_NOISE_BYTES = 3_000_000


# ---------------------------------------------------------------------- before the start


def _nothing() -> None:
    return


class Preparation(NamedTuple):
    """What a run is started with, and how to take it back."""

    variables: Mapping[str, str] = {}
    launcher: tuple[str, ...] = ()
    python: str = sys.executable
    undo: Callable[[], object] = _nothing


def unprepared(directory: Path) -> Preparation:
    """A run as always."""
    return Preparation()


def small_disk(directory: Path) -> Preparation:
    """A file system of 8 MB for everything that Eroica keeps."""
    place = mount(directory / "disk", "8m")
    variables = {"EROICA_RUN_DIR": str(place / "report"), "EROICA_SCRATCH_DIR": str(place / "scratch")}
    return Preparation(variables, undo=lambda: unmount(place))


def mount(place: Path, size: str) -> Path:
    place.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], check=True)
    return place


def unmount(place: Path) -> None:
    subprocess.run(["umount", "-l", str(place)], check=False)


def fill(path: Path) -> None:
    """Until nothing fits any more."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


# ---------------------------------------------------------------------- Eroica's processes


def a_window(trial: Trial) -> str:
    """Eroica works: a window that opens from now on comes back."""
    begin = trial.iteration()

    def done() -> bool:
        windows = trial.status().get("windows", ())
        return any(
            window["phase"] == "done" and window["first_iteration"] >= begin and window["summary"] != "0 workers"
            for window in windows
        )

    trial.await_true(done, "a window")
    return "a window came back"


def in_window(trial: Trial) -> str:
    """The training ends inside a window."""
    trial.await_window()
    return ""


def kill_agent(trial: Trial) -> str:
    """Its successor finds the workers again."""
    trial.await_window()
    agent = trial.helper("agent")
    os.kill(agent, signal.SIGKILL)
    trial.helper("agent", agent)
    trial.await_watched()
    return f"workers picked up again; {a_window(trial)}"


def kill_collector_first(trial: Trial) -> str:
    """Before it is up."""
    collector = trial.helper("collector")
    os.kill(collector, signal.SIGKILL)
    trial.helper("collector", collector)
    trial.await_watched()
    return "watched again"


def kill_collector(trial: Trial) -> str:
    """Inside a window, with which the next one goes on."""
    trial.await_window()
    return kill_collector_first(trial)


def stop_both(trial: Trial) -> str:
    """Nobody answers and nobody is dead."""
    trial.await_window()
    for name in ("agent", "collector"):
        os.kill(trial.helper(name), signal.SIGSTOP)
    trial.await_steps(trial.steps + 60)
    return ""


# ---------------------------------------------------------------------- files


def fill_disk(trial: Trial) -> str:
    """Once everybody is up."""
    trial.await_worker()
    trial.helper("agent")
    fill(trial.where.run.parent / "data")
    trial.await_true(lambda: any("be saved" in result.note for _, result in trial.results()), "a lost window")
    trial.await_steps(trial.steps + 40)
    return "no window could be saved"


def truncate(trial: Trial) -> str:
    """The named file, and what the worker has mapped, through /proc."""
    trial.await_watched()
    refused = cut(trial)
    trial.await_watched(30)
    return f"{refused} cuts refused by the kernel; {a_window(trial)}"


def cut(trial: Trial) -> int:
    """Cut everything short that a worker shares; how often the kernel refused."""
    refused = 0
    for pid in [pid for pid, _ in trial.beats()]:
        with contextlib.suppress(FileNotFoundError):
            os.truncate(trial.where.runtime / f"{pid}.beat", 0)
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                if "eroica" in str(link.readlink()) and link.is_file():
                    try:
                        os.truncate(link, 0)
                    except PermissionError:
                        refused += 1
    return refused


def noise(trial: Trial) -> None:
    """Once into every ear of ours."""
    for fifo in trial.where.runtime.glob("*.ask"):
        with contextlib.suppress(OSError):
            handle = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
            with contextlib.suppress(BlockingIOError):
                os.write(handle, os.urandom(65_536))
            os.close(handle)
    with contextlib.suppress(OSError, ValueError, KeyError):
        port = int((trial.where.run / "collector.json").read_text().split("127.0.0.1:")[1].split('"')[0])
        head = b"POST /v1/report HTTP/1.1\r\nHost: c\r\nContent-Length: %d\r\n\r\n" % _NOISE_BYTES
        for message in (os.urandom(100_000), head + bytes(_NOISE_BYTES), b"GET /" + b"x" * 500_000):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2) as line:
                line.sendall(message)


def hostile(trial: Trial) -> str:
    """Noise, scissors and removal."""
    trial.await_window()
    noise(trial)
    refused = cut(trial)
    trial.await_watched(5)
    shutil.rmtree(trial.where.runtime)
    shutil.rmtree(trial.where.scratch)
    trial.await_steps(trial.steps + 60)
    return f"{refused} cuts refused by the kernel"


# ---------------------------------------------------------------------- the user's own doing


def terminate_all(trial: Trial) -> str:
    """As a scheduler does."""
    trial.await_window()
    trial.signal_all(signal.SIGTERM)
    return ""


def new_generation(trial: Trial) -> str:
    """Both workers of the second generation are watched."""
    first = {trial.await_worker()}
    trial.await_true(lambda: (trial.directory / "out").read_text().count("\n1.") > 20, "a new generation")
    trial.await_true(lambda: len({pid for pid, _ in trial.beats()} - first) >= 2, "its workers")
    trial.await_watched()
    return "the new generation is watched"


def guard_holds(trial: Trial) -> str:
    """`eroica status` shows what happened."""
    trial.await_true(lambda: "no such luck" in str(trial.status()), "the failure in status.json")
    shown = trial.eroica("status", "--out", str(trial.where.run)).stdout
    if "failed" not in shown or "no such luck" not in shown:
        raise AssertionError(f"eroica status does not show the failure: {shown}")
    (log,) = (trial.where.run / "log").glob("worker-*.log")
    if log.read_text().count("no such luck") == 0:
        raise AssertionError("the log has no stack")
    return "shown by `eroica status`, stack in the worker's log"
