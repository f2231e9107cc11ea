"""`python -m eroica.hardware`: `eroica sample` without the imports of a command line, for the agent."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from eroica.errors import EroicaError, UsageError
from eroica.hardware.cpu import Target, parse_target
from eroica.hardware.sampler import HZ, sample_until_stopped


def parse_arguments(arguments: Sequence[str]) -> tuple[list[Target], Path, int, float | None]:
    """Return workers, directory, samples per second and the longest time in seconds.

    Raises:
        UsageError: An option is unknown, has no value or the wrong one, or a needed one is missing.
    """
    targets: list[Target] = []
    values: dict[str, str] = {}
    if len(arguments) % 2:
        raise UsageError(f"{arguments[-1]} has no value")
    for option, value in zip(arguments[::2], arguments[1::2], strict=True):
        if option == "--pid":
            targets.append(parse_target(value))
        elif option in ("--out", "--seconds", "--hz"):
            values[option] = value
        else:
            raise UsageError(f"unknown option {option!r}; known are --pid, --out, --seconds, --hz")
    if not targets or "--out" not in values:
        raise UsageError("--pid PID[:TID] and --out DIR are needed")
    try:
        seconds = float(values["--seconds"]) if "--seconds" in values else None
        hz = int(values.get("--hz", HZ))
    except ValueError:
        raise UsageError(f"--seconds and --hz take numbers, not {values}") from None
    if not 1 <= hz <= 10_000:
        raise UsageError(f"--hz is between 1 and 10000, not {hz}")
    return targets, Path(values["--out"]), hz, seconds


def main(arguments: Sequence[str]) -> int:
    """Return 0 if it sampled, 1 if it could not write, 2 for wrong usage."""
    try:
        targets, directory, hz, seconds = parse_arguments(arguments)
        sample_until_stopped(targets, directory, hz, seconds)
    except EroicaError as error:
        sys.stderr.write(f"eroica.hardware: {error}\n")
        return 2 if isinstance(error, UsageError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
