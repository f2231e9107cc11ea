"""A job of `eroica.demo.rehearsal` with any fault, layout and arguments, whose words may be replaced."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from eroica.demo import rehearsal
from eroica.demo.faults import FaultPlan
from injected.expected import EXPECTED, Expectation, culprit, demo_plan

TRAINING = Path(__file__).with_name("training")


def write_training(directory: Path, package: str = "tinylm", rename: Mapping[str, str] | None = None) -> Path:
    """Write the training that can have all faults as one package, with the faults beside it.

    See `eroica.demo.rehearsal.write_training`.
    """
    without = shutil.ignore_patterns("training", "__pycache__")
    shutil.copytree(TRAINING.parent, directory / "injected", ignore=without, dirs_exist_ok=True)
    for source in (TRAINING, rehearsal.TRAINING):
        script = rehearsal.write_training(directory, package, rename, source, "train")
    for path in (directory / package).glob("*.py"):
        text = path.read_text(encoding="utf-8")
        path.write_text(re.sub(r"\beroica\.demo\.training\.?(?=[\w ])", ".", text), encoding="utf-8")
    return script


#: The training, ended by a file instead of a time: a loaded machine takes the time it needs.
ENDLESS = """
import os
from tinylm import train

class Trainer(train.Trainer):
    def _out_of_time(self, iteration):
        if iteration % 10:
            return False
        over = train.torch.tensor(float(os.path.exists(os.environ["ENOUGH"])))
        train.dist.all_reduce(over, op=train.dist.ReduceOp.MAX)
        return float(over) > 0

if __name__ == "__main__":
    train.Trainer = Trainer
    train.main()
"""


def write_endless(directory: Path) -> str:
    """Write the same for `support.node_jobs.start_job`."""
    script = write_training(directory)
    script.write_text(ENDLESS, encoding="utf-8")
    return str(script)


@dataclass(frozen=True)
class Rehearsal(rehearsal.Rehearsal):
    """One job.

    Attributes:
        layout: How the model is spread; empty = the first layout that the fault can be in.
        expected_iteration_s: What the user says an iteration takes; 0 = nothing.
        rename: Words of the training's code to be replaced.
        job: Arguments of the training instead of those that the fault needs; None = those.
        injected: What is injected instead of the fault's own plan; empty = that.
    """

    layout: str = ""
    expected_iteration_s: float = 0.0
    rename: Mapping[str, str] = field(default_factory=dict)
    job: tuple[str, ...] | None = None
    injected: tuple[FaultPlan, ...] = ()

    @property
    def wanted(self) -> Expectation:
        """What the verdict must say."""
        return EXPECTED[self.fault]

    def training(self) -> list[str]:
        """The job as anybody would start it, without Eroica; writes its code."""
        script = write_training(self.directory / "code", rename=self.rename)
        program = ["--no-python", str(self._launch_script(script))] if self.wanted.variables else [str(script)]
        return [
            *self.torchrun(*program),
            *("--layout", self.layout or self.wanted.layouts[0], "--directory", str(self.directory)),
            *(self.wanted.job if self.job is None else self.job),
        ]

    def _launch_script(self, script: Path) -> Path:
        """A script that starts a worker, with something else in the environment of those who have the fault."""
        launch = script.with_name("launch.sh")
        export = "export " + " ".join(map(shlex.quote, self.wanted.variables))
        if self.wanted.one_worker:
            export = f'[ "$RANK" = {culprit(self.fault, self.worker)} ] && {export}'
        python = shlex.join([sys.executable, str(script)])
        launch.write_text(f'#!/bin/sh\n{export}\nexec {python} "$@"\n')
        launch.chmod(0o700)
        return launch

    def plans(self) -> tuple[FaultPlan, ...]:
        """What is injected."""
        return self.injected or (demo_plan(self.fault, self.worker, self.from_iteration),)

    def command(self) -> list[str]:
        """`eroica run -- torchrun train.py`."""
        command = super().command()
        if self.expected_iteration_s:
            at = command.index("--")
            command[at:at] = ["--expected-iteration-s", f"{self.expected_iteration_s:.4f}"]
        return command
