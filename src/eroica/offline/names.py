"""What the path of a file says: its rank, and the directory that it shares with the other ranks of a recording.

    rank0_trace.json and the like               `eroica.trace.names` knows them
    rank_3/trace.json, worker3/….json           a directory for each rank
    …_ascend_pt/ASCEND_PROFILER_OUTPUT/…        beside profiler_info_<rank>.json

What could be the rank on one host only, or anything, counts as no rank: `--rank-regex` says what it means.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePath

from eroica.errors import UsageError
from eroica.trace.names import rank_of_name

_DIRECTORY = re.compile(
    r"(?:(?<![a-z])(?<!local[-_])(?:global[-_]?)?rank|^worker)[-_.= ]?(\d{1,7})(?!\d)", re.IGNORECASE
)

_ASCEND = "ASCEND_PROFILER_OUTPUT"
_ASCEND_RANK = re.compile(r"profiler_info_(\d{1,6})\.json$")


@dataclass(frozen=True)
class Named:
    """What a name says.

    Attributes:
        rank: Global rank, -1 if it does not say.
        place: The directory that it shares with the other ranks of the same recording: its own, or, where a directory
            is named by the rank, the same path with "*" for the rank.
    """

    rank: int
    place: str


def read_name(path: PurePath, pattern: re.Pattern[str] | None = None, depth: int = 3) -> Named:
    """What the name of a file, and of the directories it lies in, says.

    Args:
        path: The file.
        pattern: The user's own rule instead of ours; its group is the global rank.
        depth: Directories above the file that may be named by a rank.
    """
    place = str(path.parent)
    if pattern is not None:
        return Named(*_by_rule(path, pattern))
    rank = rank_of_name(path.name)
    if rank >= 0:
        return Named(rank, place)
    parts = list(path.parent.parts)
    for at in range(len(parts) - 1, max(len(parts) - 1 - depth, -1), -1):
        found = _DIRECTORY.search(parts[at])
        if found is not None:
            shared = f"{parts[at][: found.start(1)]}*{parts[at][found.end(1) :]}"
            return Named(int(found[1]), str(PurePath(*parts[:at], shared, *parts[at + 1 :])))
    return Named(-1, place)


def ascend_name(path: Path) -> Named | None:
    """What torch_npu's folder of one rank says: `profiler_info_<rank>.json` beside its `ASCEND_PROFILER_OUTPUT`.

    Args:
        path: The file in it.
    """
    if path.parent.name != _ASCEND:
        return None
    folder = path.parent.parent
    try:
        found = [match for one in folder.glob("profiler_info_*.json") if (match := _ASCEND_RANK.match(one.name))]
    except OSError:
        return None
    return Named(int(found[0][1]), str(folder.parent / "*" / _ASCEND)) if len(found) == 1 else None


def _by_rule(path: PurePath, pattern: re.Pattern[str]) -> tuple[int, str]:
    for text, is_name in ((path.name, True), (str(path), False)):
        found = pattern.search(text)
        if found is None:
            continue
        rank = int(found[1]) if (found[1] or "").isdecimal() and len(found[1]) < 8 else -1
        inside = is_name or found.start(1) > len(str(path.parent))
        place = path.parent if inside else f"{text[: found.start(1)]}*{str(path.parent)[found.end(1) :]}"
        return rank, str(place)
    return -1, str(path.parent)


def compile_rule(text: str) -> re.Pattern[str]:
    r"""The user's rule for ranks, `--rank-regex 'node(\d+)'`.

    Raises:
        UsageError: It is no regular expression with one group.
    """
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise UsageError(f"the rank regex {text!r} is no regular expression: {error}") from None
    if pattern.groups != 1:
        example = r"'rank(\d+)'"
        raise UsageError(f"the rank regex {text!r} needs exactly one group, around the rank's digits, like {example}")
    return pattern
