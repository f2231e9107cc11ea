"""Read the rank of a trace or dump from its name, as the ecosystem writes it.

    rank0_trace.json, rank-3.json.gz, sampled_rank-0.json.gz, trace_rank3.json, …_r3.json, nccl_trace_rank_3, _dump_3
    worker7_step_12.1694128201553.pt.trace.json         tensorboard_trace_handler(worker_name="worker7_step_12")
    rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz        Meta's and Megatron's
    dp0_pp0_tp1_rank5.1700000000000.pt.trace.json.gz    vLLM; 1700000000.12-TP-1.trace.json.gz   SGLang
    profile_3.json                                      Hugging Face accelerate
    rank_3/trace.json, worker3/….json                   a directory for each rank
    host-a_171.1694128201553.pt.trace.json              tensorboard_trace_handler alone: host and process, no rank

Numbers that are the rank on one host only (`local_rank3`, `gpu3`) and numbers that could be anything (`trace_3.json`)
count as no rank; `--rank-regex` says what they mean. Torch's Flight Recorder puts the global rank last.
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
_AT_THE_END = re.compile(r"(?<!\d)(\d{1,6})(?:\.[A-Za-z]\w*)*$")
_LOCAL = re.compile(r"local[-_]?rank|gpu[-_]?\d", re.IGNORECASE)
_DIRECTORY = re.compile(
    r"(?:(?<![a-z])(?<!local[-_])(?:global[-_]?)?rank|^worker)[-_.= ]?(\d{1,7})(?!\d)", re.IGNORECASE
)
#: Directories above a file that may be named by a rank.
_DEPTH = 3


@dataclass(frozen=True)
class Named:
    """What a path says.

    Attributes:
        rank: Global rank, -1 without one.
        place: Directory that the file shares with the other ranks of its recording; "*" stands for the rank in it.
    """

    rank: int
    place: str


def rank_of_name(name: str) -> int:
    """Return the global rank that a file's name states, -1 without one."""
    stem = name[: _ENDING.search(name).start()]  # type: ignore[union-attr]  # it matches at the end of anything
    found = _RANK.search(stem)
    if found is not None:
        return int(found[1])
    stamped = _STAMPED.match(stem)
    if stamped is not None:
        stem = stamped["worker"]
        host = _HOST_AND_PROCESS.match(stem)
        if host is not None and not _STEP.search(host["host"]):  # a host may be called "worker-3"
            return -1
    return next((int(found[1]) for spelled in _SPELLED if (found := spelled.search(stem)) is not None), -1)


def rank_of_dump(name: str) -> int | None:
    """Return the global rank that the name of a Flight Recorder dump states."""
    rank = rank_of_name(name)
    if rank >= 0:
        return rank
    found = _AT_THE_END.search(name) if _LOCAL.search(name) is None else None
    return int(found[1]) if found is not None else None


def read_name(path: PurePath, rule: re.Pattern[str] | None = None) -> Named:
    """Return what the path of a file says.

    Args:
        path: The file.
        rule: The user's own rule instead of the usual names; its group is the global rank.
    """
    if rule is not None:
        return _by_rule(path, rule)
    rank = rank_of_name(path.name)
    if rank >= 0:
        return Named(rank, str(path.parent))
    parts = path.parent.parts
    for at in range(len(parts) - 1, max(len(parts) - 1 - _DEPTH, -1), -1):
        found = _DIRECTORY.search(parts[at])
        if found is not None:
            shared = f"{parts[at][: found.start(1)]}*{parts[at][found.end(1) :]}"
            return Named(int(found[1]), str(PurePath(*parts[:at], shared, *parts[at + 1 :])))
    return Named(-1, str(path.parent))


def _by_rule(path: PurePath, rule: re.Pattern[str]) -> Named:
    for text, is_name in ((path.name, True), (str(path), False)):
        found = rule.search(text)
        if found is None:
            continue
        rank = int(found[1]) if (found[1] or "").isdecimal() and len(found[1]) < 8 else -1
        inside = is_name or found.start(1) > len(str(path.parent))
        place = path.parent if inside else f"{text[: found.start(1)]}*{str(path.parent)[found.end(1) :]}"
        return Named(rank, str(place))
    return Named(-1, str(path.parent))


def compile_rule(text: str) -> re.Pattern[str]:
    r"""Compile the user's rule for ranks, `--rank-regex 'node(\d+)'`.

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
