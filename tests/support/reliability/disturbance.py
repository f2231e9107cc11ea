"""What is done to Eroica, or by the user's code, while a training runs."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from support.reliability import acts
from support.reliability.comparison import Outcome
from support.reliability.trial import Reference, Trial, attempt

_ENOUGH_STEPS = 60


def until_enough(reference: Reference) -> None:
    reference.await_steps(_ENOUGH_STEPS)


class Disturbance(NamedTuple):
    """One disturbance.

    Attributes:
        name: Its slug.
        what: What is done, for the table of `docs/reliability.md`.
        act: Does it, sees to it that it was done, and returns what Eroica made of it.
        ranks: Processes of the training.
        options: Of the training, with Eroica and without.
        settings: Of Eroica.
        prepare: Returns variables of the environment and what to start the run with.
        alike: Done to the run without Eroica too; by default that one trains on alone.
        exact_err: Standard error must be the same to the byte.
        root: Needs root.
    """

    name: str
    what: str
    act: Callable[[Trial], str]
    ranks: int = 1
    options: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    prepare: Callable[[Path], acts.Preparation] = acts.unprepared
    alike: Callable[[Reference], object] | None = None
    exact_err: bool = True
    root: bool = False

    @property
    def impossible_here(self) -> str:
        """Why it cannot be tried on this machine; empty if it can."""
        if self.root and os.geteuid() != 0:
            return "needs root"
        return "needs mount" if self.root and shutil.which("mount") is None else ""

    @property
    def compared_with(self) -> tuple[object, ...]:
        """The same for disturbances that can be compared with one and the same run without Eroica."""
        return self.ranks, tuple(option for option in self.options if option != "--sabotage"), self.alike

    def without_eroica(self, directory: Path) -> Outcome:
        """How the training runs and ends when nobody watches."""
        reference = Reference(directory, self.ranks, self.options)
        return attempt(reference, self.alike or _until_its_end)

    def with_eroica(self, directory: Path) -> tuple[Outcome, str]:
        """How it runs and ends when Eroica watches and is disturbed, and what Eroica made of it."""
        prepared = self.prepare(directory)
        seen: list[str] = []
        try:
            trial = Trial(
                directory, self.ranks, self.options, self.settings, prepared.launcher, prepared.python,
                **prepared.variables,
            )  # fmt: skip
            return attempt(trial, lambda running: seen.append(self.act(running))), "; ".join(filter(None, seen))
        finally:
            prepared.undo()


def _until_its_end(reference: Reference) -> None:
    reference.process.wait()


def terminate_all(reference: Reference) -> str:
    reference.await_steps(_ENOUGH_STEPS)
    reference.signal_all(signal.SIGTERM)
    return ""


DISTURBANCES: tuple[Disturbance, ...] = (
    Disturbance("agent-killed", "SIGKILL to the agent inside a window", acts.kill_agent),
    Disturbance("collector-killed-in-window", "SIGKILL to the collector inside a window", acts.kill_collector),
    Disturbance("both-stopped", "SIGSTOP to agent and collector inside a window", acts.stop_both),
    Disturbance("disk-full", "run and scratch directory on a file system that fills up before the first window",
                acts.fill_disk, prepare=acts.small_disk, root=True),
    Disturbance("hostile-files", "files removed, files cut and garbage, one after the other, in windows", acts.hostile),
    Disturbance("exception", "the training ends by an exception inside a window", acts.in_window,
                options=("--finish", "raise"), alike=until_enough),
    Disturbance("sigterm-job", "SIGTERM to every process of the job inside a window", acts.terminate_all,
                alike=terminate_all),
    Disturbance("elastic-restart", "a worker exits with status 1 and torchrun starts both anew", acts.new_generation,
                ranks=2, options=("--fails-once", "--steps", "300"), settings=("baseline_window=false",),
                exact_err=False),
    Disturbance("guard", "Eroica's own code in the worker raises", acts.guard_holds, options=("--sabotage",)),
)  # fmt: skip
