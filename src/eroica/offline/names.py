"""What the name of a trace file says: as the ecosystem writes them.

    rank0_trace.json, rank-3.json.gz, sampled_rank-0.json.gz, trace_rank3.json, …_r3.json, nccl_trace_rank_3, _dump_3
    worker7_step_12.1694128201553.pt.trace.json         tensorboard_trace_handler(worker_name="worker7_step_12")
    rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz        Meta's and Megatron's
    dp0_pp0_tp1_rank5.1700000000000.pt.trace.json.gz    vLLM; 1700000000.12-TP-1.trace.json.gz   SGLang
    profile_3.json                                      Hugging Face accelerate
    rank_3/trace.json, worker3/….json                   a directory for each rank
    host-a_171.1694128201553.pt.trace.json              tensorboard_trace_handler alone: host and process, no rank
    libkineto_trace_171.json                            dynolog: a process, no rank

Numbers that are the rank on one host only (`local_rank3`, `gpu3`) and numbers that could be anything (`trace_3.json`)
count as no rank: `--rank-regex` says what they mean.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePath

from eroica.errors import UsageError

_ENDING = re.compile(r"(\.pt)?(\.trace)?(\.(json|trace|pkl|pickle|pt))?(\.gz)?$", re.IGNORECASE)
_STAMPED = re.compile(r"^(?P<worker>.+?)\.\d{10,19}$")
_HOST_AND_PROCESS = re.compile(r"^(?P<host>.+)_\d{1,8}$")
_STEP = re.compile(r"(?:^|[-_.])(?:step|iteration|iter|epoch)$", re.IGNORECASE)
_RANK = re.compile(r"(?<![a-z])(?<!local[-_])(?:global[-_]?)?rank[-_.= ]?(\d{1,7})(?!\d)", re.IGNORECASE)
_SPELLED = (
    re.compile(r"^_dump_(\d{1,7})$"),
    re.compile(r"^(?:.*(?<!num)[-_.])?worker[-_]?(\d{1,7})(?![0-9a-z])", re.IGNORECASE),
    re.compile(r"(?:^|[-_.])r[-_]?(\d{1,7})(?=$|[-_.])"),
    re.compile(r"^profile_(\d{1,7})$"),
    re.compile(r"^(?!.*-[DPE]P-\d).*-TP-(\d{1,7})$"),
)
_DIRECTORY = re.compile(
    r"(?:(?<![a-z])(?<!local[-_])(?:global[-_]?)?rank|^worker)[-_.= ]?(\d{1,7})(?!\d)", re.IGNORECASE
)


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


def rank_of_name(name: str) -> int:
    """Global rank that a file's name states, -1 if it does not."""
    stem = name[: _ENDING.search(name).start()]  # type: ignore[union-attr]  # it matches at the end of anything
    found = _RANK.search(stem)
    if found is not None:
        return int(found[1])
    stamped = _STAMPED.match(stem)
    if stamped is not None and _is_host_and_process(stamped["worker"]):
        return -1
    stem = stamped["worker"] if stamped is not None else stem
    for spelled in _SPELLED:
        found = spelled.search(stem)
        if found is not None:
            return int(found[1])
    return -1


def _is_host_and_process(worker: str) -> bool:
    """tensorboard_trace_handler's own name for a worker; a host may well be called "worker-3"."""
    found = _HOST_AND_PROCESS.match(worker)
    return found is not None and not _STEP.search(found["host"])


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
