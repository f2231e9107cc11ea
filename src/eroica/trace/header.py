"""What stands beside the events: rank, process groups, job, host, base of the times."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from eroica.model.worker import ProcessGroup
from eroica.trace.table import TraceHeader

_MOST_RANK = 2**31
_MOST_TEXT = 500
_MOST_WORLD = 1_000_000
_MOST_EVERYBODY = 100_000
_MOST_GROUPS = 100_000
_MOST_PRINTED = 1_000_000
_JOB_KEYS = ("mast_job_name", "job_name", "job", "job_id", "slurm_job_id", "SLURM_JOB_ID", "tw_job")
_HOST_KEYS = ("host_name", "hostname", "host")
#: Kineto writes driver, runtime and CUPTI since 2023; torch_npu and launchers add others.
_VERSIONS = {
    "torch": ("torch_version", "pytorch_version", "PyTorch Version"),
    "CUDA driver": ("cuda_driver_version", "driver_version"),
    "CUDA runtime": ("cuda_runtime_version", "cuda_version"),
    "HIP driver": ("hip_driver_version",),
    "HIP runtime": ("hip_runtime_version",),
}
_PYTHON_WORDS = {"None": "null", "True": "true", "False": "false"}
_WORD = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|\b(?:None|True|False)\b|[()]', re.DOTALL)  # linear: never goes back


def read_header(keys: Mapping[str, msgspec.Raw], process: int, device: int) -> tuple[TraceHeader, tuple[str, ...]]:
    """The header of a trace, and what of it was not taken; what is missing or of a strange type stays unknown.

    Args:
        keys: What stands beside the events, undecoded.
        process: Process of the operators, -1 if unknown.
        device: Number of the device whose kernels these are, -1 if unknown.
    """
    told = {name: value for name, raw in keys.items() if (value := _value(raw)) is not None}
    distributed = _record(told.get("distributedInfo"))
    stated = _natural(distributed.get("world_size"), 0)
    world = stated if stated <= _MOST_WORLD else 0
    header = TraceHeader(
        rank=_natural(distributed.get("rank"), -1),
        world_size=world,
        backend=_text(distributed.get("backend")),
        host=_first_text(told, _HOST_KEYS),
        process_id=process,
        groups=tuple(_groups(distributed.get("pg_config"), world)),
        job=_first_text(told, _JOB_KEYS),
        name=_text(told.get("traceName")),
        device=_device(told.get("deviceProperties"), device),
        versions=tuple((name, text) for name, keys in _VERSIONS.items() if (text := _first_text(told, keys))),
    )
    return header, _doubts(stated)


def _doubts(stated: int) -> tuple[str, ...]:
    """What is said about a stated number of workers that is too large."""
    if stated > _MOST_WORLD:
        return (f"the trace states a world size of {stated:,}, which is not believed",)
    if stated > _MOST_EVERYBODY:
        return (
            f"the trace states a world size of {stated:,}: groups of more than {_MOST_EVERYBODY:,} "
            "whose members it does not list stay without them",
        )
    return ()


def everybody(world: int) -> tuple[int, ...]:
    """All ranks of a job; nobody where they are too many to be listed."""
    return tuple(range(world)) if world <= _MOST_EVERYBODY else ()


def _value(raw: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _from_text(value: Any) -> Any:
    """Some writers keep a record as text: JSON, or what Python prints."""
    if not isinstance(value, str):
        return value
    decoded = _decoded(value)
    if decoded is None and len(value) <= _MOST_PRINTED:
        return _decoded(_WORD.sub(_as_json, value.replace("'", '"')))
    return decoded


def _decoded(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def _as_json(found: re.Match[str]) -> str:
    return {"(": "[", ")": "]", **_PYTHON_WORDS}.get(found[0], found[0])


def _record(value: Any) -> dict[str, Any]:
    value = _from_text(value)
    return value if isinstance(value, dict) else {}


def _natural(value: Any, default: int) -> int:
    try:
        number = int(value) if isinstance(value, (int, str)) and not isinstance(value, bool) else default
    except ValueError:
        return default
    return number if 0 <= number < _MOST_RANK else default


def _text(value: Any) -> str:
    return str(value)[:_MOST_TEXT] if isinstance(value, (str, int)) else ""


def _first_text(told: Mapping[str, Any], names: Iterable[str]) -> str:
    return next((text for name in names if (text := _text(told.get(name)))), "")


def _device(value: Any, number: int) -> str:
    devices = _from_text(value)
    named = [one for one in devices if isinstance(one, dict)] if isinstance(devices, list) else []
    chosen = next((one for one in named if one.get("id") == number), named[0] if named else {})
    return _text(chosen.get("name"))


# --- process groups ---


def _groups(value: Any, world: int) -> Iterable[ProcessGroup]:
    """The groups of "pg_config": a list of records, or records by name. One whose members are not all told is left out.

    torch leaves "ranks" empty where a group holds everybody.
    """
    config = _from_text(value)
    if isinstance(config, dict):
        config = [{"pg_name": name, **one} for name, one in config.items() if isinstance(one, dict)]
    all_ranks = everybody(world)
    for entry in config[:_MOST_GROUPS] if isinstance(config, list) else ():
        one = _record(entry)
        size = _natural(one.get("pg_size", one.get("group_size")), 0)
        ranks = _ranks(one.get("ranks"))
        if ranks == () and size == world > 0:
            ranks = all_ranks
        name = one.get("pg_name", one.get("name"))
        if ranks and name is not None and size in (0, len(ranks)):
            yield ProcessGroup(
                name=_text(name),
                description=_text(one.get("pg_desc", one.get("description", ""))),
                ranks=ranks,
                backend=_backend(_text(one.get("backend_config", one.get("backend", "")))),
            )


def _ranks(value: Any) -> tuple[int, ...] | None:
    """Members; None where the list is abbreviated or no list."""
    if isinstance(value, dict):
        value = list(value)
    value = _from_text(value)
    if not isinstance(value, list):
        return () if value is None else None
    numbers = [_natural(one, -1) for one in value]
    return tuple(numbers) if min(numbers, default=0) >= 0 else None


def _backend(config: str) -> str:
    """What serves the accelerator, else the only one: nccl of "cpu:gloo,cuda:nccl"."""
    parts = [part.rpartition(":") for part in config.split(",")]
    return next((name for place, _, name in parts if place not in ("", "cpu")), parts[0][2])
