"""What the name of a file says about its rank: as the ecosystem writes them.

    rank0_trace.json, rank-3.json.gz, sampled_rank-0.json.gz, trace_rank3.json, …_r3.json, nccl_trace_rank_3, _dump_3
    worker7_step_12.1694128201553.pt.trace.json         tensorboard_trace_handler(worker_name="worker7_step_12")
    rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz        Meta's and Megatron's
    dp0_pp0_tp1_rank5.1700000000000.pt.trace.json.gz    vLLM; 1700000000.12-TP-1.trace.json.gz   SGLang
    profile_3.json                                      Hugging Face accelerate
    host-a_171.1694128201553.pt.trace.json              tensorboard_trace_handler alone: host and process, no rank
    libkineto_trace_171.json                            dynolog: a process, no rank

Numbers that are the rank on one host only (`local_rank3`, `gpu3`) and numbers that could be anything (`trace_3.json`)
count as no rank. Only torch's Flight Recorder puts the global rank behind whatever name it was given.
"""

from __future__ import annotations

import re

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


def rank_of_dump(name: str) -> int | None:
    """Global rank that the name of a Flight Recorder dump states: torch puts it at the end of the name it was given."""
    rank = rank_of_name(name)
    if rank >= 0:
        return rank
    found = _AT_THE_END.search(name) if _LOCAL.search(name) is None else None
    return int(found[1]) if found is not None else None
