"""The disturbances themselves: what a run is started with, and what is done at which moment; what Eroica made of it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import psutil

import eroica
from support.reliability.trial import Reference, Trial

_NOISE_BYTES = 3_000_000
_LEFT_ALONE_S = 90.0


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
    place = _mount(directory / "disk", "8m")
    variables = {"EROICA_RUN_DIR": str(place / "report"), "EROICA_SCRATCH_DIR": str(place / "scratch")}
    return Preparation(variables, undo=lambda: _unmount(place))


def full_memory(directory: Path) -> Preparation:
    """No room for a beat file."""
    place = _mount(directory / "disk", "64k")
    (place / f"eroica-{os.getuid()}" / "trial@here").mkdir(parents=True, mode=0o700)
    (place / f"eroica-{os.getuid()}").chmod(0o700)
    fill(place / "data")
    return Preparation({"EROICA_RUNTIME_DIR": str(place)}, undo=lambda: _unmount(place))


def _mount(place: Path, size: str) -> Path:
    place.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], check=True)
    return place


def _unmount(place: Path) -> None:
    subprocess.run(["umount", "-l", str(place)], check=False)


def fill(path: Path) -> None:
    """Until nothing fits any more."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


def scratch_in_the_way(directory: Path) -> Preparation:
    """A file where the scratch directory should be."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "scratch").write_text("in the way")
    return Preparation()


def without_py_spy(directory: Path) -> Preparation:
    """Another environment with the same packages, but without their programs."""
    place = directory / "environment"
    venv.create(place, symlinks=True)
    (library,) = place.glob("lib/python*/site-packages")
    package = Path(eroica.__file__).parents[1]
    paths = [path for path in (str(package), *sys.path) if "site-packages" in path or path == str(package)]
    (library / "ours.pth").write_text("\n".join(dict.fromkeys(paths)) + "\n")
    kept = [part for part in os.environ.get("PATH", "").split(os.pathsep) if not (Path(part) / "py-spy").exists()]
    return Preparation({"PATH": os.pathsep.join(kept)}, python=str(place / "bin" / "python"))


# ---------------------------------------------------------------------- Eroica's processes


def one_window(trial: Trial) -> str:
    """Nothing but two windows: the first is Eroica's own wish."""
    a_window(trial)
    return window_by_hand(trial)


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


def window_by_hand(trial: Trial) -> str:
    """Eroica works: a window comes back."""
    trial.await_watched()
    trial.await_true(lambda: trial.status().get("phase") not in ("window", "capturing"), "the end of a window")
    end = time.monotonic() + 30
    while True:
        done = trial.eroica("profile", "--out", str(trial.where.run), "--seconds", "0.5")
        if done.returncode in (0, 3, 4):
            return "a window by hand came back"
        if time.monotonic() > end or trial.process.poll() is not None:
            raise TimeoutError(f"no window came back: {done.stderr}")
        time.sleep(0.3)


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


def kill_collector_last(trial: Trial) -> str:
    """When the training has been told to end."""
    trial.await_watched()
    trial.end_file.touch()
    os.kill(trial.helper("collector"), signal.SIGKILL)
    return ""


def kill_all(trial: Trial) -> str:
    """As often as they come back."""
    trial.await_window()
    killed, end = set[int](), time.monotonic() + _LEFT_ALONE_S
    quiet_since = time.monotonic()
    while time.monotonic() < end and time.monotonic() - quiet_since < 9.5 and trial.process.poll() is None:
        for child in _helpers(trial):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
                killed.add(child.pid)
                quiet_since = time.monotonic()
        time.sleep(0.05)
    return f"{len(killed)} processes killed"


def _helpers(trial: Trial) -> list[psutil.Process]:
    found = []
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(trial.process.pid).children():
            with contextlib.suppress(psutil.Error):
                if any(word.startswith("eroica.") for word in child.cmdline()):
                    found.append(child)
    return found


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


def unregistered(trial: Trial) -> str:
    """The worker finds no room to register."""
    trial.await_steps(90)
    logs = list((trial.where.run / "log").glob("worker-*.log"))
    return "the worker is not watched" + (", its log says why" if logs else "")


def window_fails(trial: Trial) -> str:
    """No order can be given; the job is watched all the same."""
    trial.await_watched(60)
    trial.await_true(lambda: "could not be prepared" in str(trial.status()), "a note")
    return "no window, and a note why"


def remove_runtime(trial: Trial) -> str:
    """The worker's and the agent's files, and the directory that the trace shall go to."""
    trial.await_window()
    shutil.rmtree(trial.where.scratch)
    shutil.rmtree(trial.where.runtime)
    trial.await_steps(trial.steps + 60)
    return ""


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


def garbage(trial: Trial) -> str:
    """From the user's own other processes, and from whoever reaches the port."""
    trial.await_watched()
    for _ in range(3):
        noise(trial)
        trial.await_watched(5)
    return "watched all the time"


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


def user_profiles_first(trial: Trial) -> str:
    """Long before any window."""
    trial.await_true(lambda: "another profiler" in str(trial.status()), "a note")
    trial.await_steps(420)
    return "the window was given up: another profiler is active"


def user_profiles(trial: Trial) -> str:
    """Exactly when ours does."""
    trial.await_window()
    (trial.directory / "profile").touch()
    trial.await_true(lambda: "another profiler" in str(trial.status()), "a note")
    trial.await_steps(trial.steps + 20)
    return "the window made way"


def terminate_all(trial: Trial) -> str:
    """As a scheduler does."""
    trial.await_window()
    trial.signal_all(signal.SIGTERM)
    return ""


def terminate_run(trial: Trial) -> str:
    """As a supervisor does, which knows the process that it started; the signal may wait until the window is saved."""
    trial.await_window()
    trial.process.send_signal(signal.SIGTERM)
    trial.await_true(lambda: trial.process.poll() is not None, "its end")
    return ""


def new_generation(trial: Trial) -> str:
    """Both workers of the second generation are watched."""
    first = {trial.await_worker()}
    trial.await_true(lambda: (trial.directory / "out").read_text().count("\n1.") > 20, "a new generation")
    trial.await_true(lambda: len({pid for pid, _ in trial.beats()} - first) >= 2, "its workers")
    trial.await_watched()
    return "the new generation is watched"


def kill_worker(trial: Trial) -> str:
    """The one whose window is open."""
    os.kill(trial.await_window(), signal.SIGKILL)
    return ""


def kill_a_rank(reference: Reference) -> str:
    """The same without Eroica: any of the workers."""
    reference.await_steps(60)
    workers = psutil.Process(reference.process.pid).children(recursive=True)
    os.kill(next(worker.pid for worker in workers if "train.py" in " ".join(worker.cmdline())), signal.SIGKILL)
    return ""


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
