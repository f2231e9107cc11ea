"""Two runs of the training, compared to the bit."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import NamedTuple

_STEP = re.compile(r"(\d+)\.(\d+) (\d+) (\S+) (\S+)")
_OURS = "eroica: "
_WHEN_AND_WHO = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \d+:\d+")  # in the lines of the user's own profiler
_TRACES = ("eroica/worker", "eroica/wire", "eroica.worker", "Eroica")


class Outcome(NamedTuple):
    """How a run ended."""

    status: int
    out: str
    err: str

    @property
    def said_by_eroica(self) -> list[str]:
        """What `eroica run` said, before the command began or after it had ended."""
        return [line.removeprefix(_OURS) for line in self.err.splitlines() if line.startswith(_OURS)]

    @property
    def said_by_training(self) -> str:
        """Everything else of standard error; time and process id of Kineto's lines left out."""
        lines = (line for line in self.err.splitlines(True) if not line.startswith(_OURS))
        return _WHEN_AND_WHO.sub("WHEN", "".join(lines))


def steps_of(out: str) -> dict[tuple[int, int], list[str]]:
    """Loss and hash of every step, by generation and rank.

    Raises:
        ValueError: The steps of a rank do not count up from 0.
    """
    found: dict[tuple[int, int], list[str]] = defaultdict(list)
    for line in out.splitlines():
        match = _STEP.fullmatch(line)
        if match is not None:
            steps = found[int(match[1]), int(match[2])]
            if int(match[3]) != len(steps):
                raise ValueError(f"step {len(steps)} is missing before {line!r}")
            steps.append(f"{match[4]} {match[5]}")
    return dict(found)


def other_lines(out: str) -> list[str]:
    """What else was said; ranks in no particular order."""
    return sorted(line for line in out.splitlines() if not _STEP.fullmatch(line))


def differences(watched: Outcome, alone: Outcome, exact_err: bool = True) -> list[str]:
    """What the training with Eroica saw otherwise than the one without; empty for nothing.

    The runs may be of different lengths: every step of both must be the same.

    Args:
        watched: With Eroica.
        alone: Without.
        exact_err: Standard error must be the same to the byte; else, where several processes fail at once and torchrun
            reports it, it must only hold nothing of Eroica.
    """
    found = []
    if watched.status != alone.status:
        found.append(f"exit status {watched.status} instead of {alone.status}")
    try:
        ours, theirs = steps_of(watched.out), steps_of(alone.out)
    except ValueError as error:
        return [*found, str(error)]
    if ours.keys() != theirs.keys():
        found.append(f"generations and ranks {sorted(ours)} instead of {sorted(theirs)}")
    for key in sorted(ours.keys() & theirs.keys()):
        both = zip(ours[key], theirs[key], strict=False)
        first = next((step for step, (mine, yours) in enumerate(both) if mine != yours), None)
        if first is not None:
            found.append(f"rank {key[1]}, step {first}: {ours[key][first]} instead of {theirs[key][first]}")
    if other_lines(watched.out) != other_lines(alone.out):
        found.append(f"standard output {other_lines(watched.out)} instead of {other_lines(alone.out)}")
    if exact_err and watched.said_by_training != alone.said_by_training:
        found.append(f"standard error {watched.said_by_training!r} instead of {alone.said_by_training!r}")
    if any(trace in watched.said_by_training for trace in _TRACES):
        found.append(f"standard error speaks of Eroica: {watched.said_by_training!r}")
    return found


def steps_compared(watched: Outcome, alone: Outcome) -> int:
    """Steps of all ranks that both runs have."""
    ours, theirs = steps_of(watched.out), steps_of(alone.out)
    return sum(min(len(ours[key]), len(theirs[key])) for key in ours.keys() & theirs.keys())
