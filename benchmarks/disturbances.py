"""Acts of others on Eroica, and of the user's code, while a training runs."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
import venv
from pathlib import Path

import psutil

import eroica
from support.reliability import DISTURBANCES as TESTED
from support.reliability import Disturbance, Reference, Trial, acts
from support.reliability.disturbance import terminate_all, until_enough

LEFT_ALONE_S = 90.0


def full_memory(directory: Path) -> acts.Preparation:
    """No room for a beat file."""
    place = acts.mount(directory / "disk", "64k")
    (place / f"eroica-{os.getuid()}" / "trial@here").mkdir(parents=True, mode=0o700)
    (place / f"eroica-{os.getuid()}").chmod(0o700)
    acts.fill(place / "data")
    return acts.Preparation({"EROICA_RUNTIME_DIR": str(place)}, undo=lambda: acts.unmount(place))


def scratch_in_the_way(directory: Path) -> acts.Preparation:
    """A file where the scratch directory should be."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "scratch").write_text("in the way")
    return acts.Preparation()


def without_py_spy(directory: Path) -> acts.Preparation:
    """Another environment with the same packages, but without their programs."""
    place = directory / "environment"
    venv.create(place, symlinks=True)
    (library,) = place.glob("lib/python*/site-packages")
    package = Path(eroica.__file__).parents[1]
    paths = [path for path in (str(package), *sys.path) if "site-packages" in path or path == str(package)]
    (library / "ours.pth").write_text("\n".join(dict.fromkeys(paths)) + "\n")
    kept = [part for part in os.environ.get("PATH", "").split(os.pathsep) if not (Path(part) / "py-spy").exists()]
    return acts.Preparation({"PATH": os.pathsep.join(kept)}, python=str(place / "bin" / "python"))


def one_window(trial: Trial) -> str:
    """Only two windows open; Eroica opens the first by itself."""
    acts.a_window(trial)
    return window_by_hand(trial)


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


def kill_collector_last(trial: Trial) -> str:
    """Act when the training has been told to end."""
    trial.await_watched()
    trial.end_file.touch()
    os.kill(trial.helper("collector"), signal.SIGKILL)
    return ""


def kill_all(trial: Trial) -> str:
    """Kill agent and collector, each time that they come back."""
    trial.await_window()
    killed, end = set[int](), time.monotonic() + LEFT_ALONE_S
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


def garbage(trial: Trial) -> str:
    """From the user's own other processes, and from whoever reaches the port."""
    trial.await_watched()
    for _ in range(3):
        acts.noise(trial)
        trial.await_watched(5)
    return "watched all the time"


def user_profiles_first(trial: Trial) -> str:
    """Act long before any window."""
    trial.await_true(lambda: "another profiler" in str(trial.status()), "a note")
    trial.await_steps(420)
    return "the window was given up: another profiler is active"


def user_profiles(trial: Trial) -> str:
    """The user's code profiles in the same iterations as a window."""
    trial.await_window()
    (trial.directory / "profile").touch()
    trial.await_true(lambda: "another profiler" in str(trial.status()), "a note")
    trial.await_steps(trial.steps + 20)
    return "the window made way"


def terminate_run(trial: Trial) -> str:
    """Send SIGTERM to `eroica run` itself. The signal may wait until the window is saved."""
    trial.await_window()
    trial.process.send_signal(signal.SIGTERM)
    trial.await_true(lambda: trial.process.poll() is not None, "its end")
    return ""


def kill_worker(trial: Trial) -> str:
    """Kill the worker whose window is open."""
    os.kill(trial.await_window(), signal.SIGKILL)
    return ""


def kill_a_rank(reference: Reference) -> str:
    """The same without Eroica: any of the workers."""
    reference.await_steps(60)
    workers = psutil.Process(reference.process.pid).children(recursive=True)
    os.kill(next(worker.pid for worker in workers if "train.py" in " ".join(worker.cmdline())), signal.SIGKILL)
    return ""


def _profile_at_once(reference: Reference) -> None:
    (reference.directory / "profile").touch()
    reference.process.wait()


DISTURBANCES: tuple[Disturbance, ...] = (
    Disturbance("nothing", "nothing at all; windows", one_window),
    Disturbance("collector-killed-at-start", "SIGKILL to the collector once it is there", acts.kill_collector_first),
    Disturbance("collector-killed-at-end", "SIGKILL to the collector when the training ends", kill_collector_last),
    Disturbance("both-killed-for-good", "SIGKILL to agent and collector each time that they come back", kill_all),
    Disturbance("memory-full", "runtime directory on a file system that is full from the start",
                unregistered, prepare=full_memory, root=True),
    Disturbance("scratch-unwritable", "the scratch directory cannot be made: a file is in its place",
                window_fails, prepare=scratch_in_the_way),
    Disturbance("no-py-spy", "py-spy not installed", acts.a_window, prepare=without_py_spy),
    Disturbance("files-removed", "beat file, FIFO, lock, runtime and scratch directory removed inside a window",
                remove_runtime),
    Disturbance("memory-truncated", "beat file and shared memory cut to nothing, through every path there is",
                acts.truncate),
    Disturbance("garbage", "random bytes in the FIFO and garbage and 3 MB messages on the collector's port",
                garbage),
    Disturbance("profiler-first", "the training profiles itself from its first step on",
                user_profiles_first, options=("--profile-when", "{}", "--profiled-steps", "400")),
    Disturbance("profiler-in-window", "the training starts a profiler of its own inside a window",
                user_profiles, options=("--profile-when", "{}/profile"), alike=_profile_at_once),
    Disturbance("exit", "the training ends by os._exit(7) inside a window", acts.in_window,
                options=("--finish", "exit"), alike=until_enough),
    Disturbance("sigterm-run", "SIGTERM to `eroica run` alone (without Eroica: to the training)", terminate_run,
                alike=terminate_all),
    Disturbance("worker-killed", "SIGKILL to one of two workers inside a window", kill_worker, ranks=2,
                alike=kill_a_rank, exact_err=False),
    *TESTED,
)  # fmt: skip
