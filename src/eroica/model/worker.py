"""Who takes part: a worker, its process groups."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal

import msgspec


class ProcessGroup(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One process group as a worker knows it.

    Attributes:
        name: torch's name of the group ("0" is the default group).
        description: torch's description ("default_pg", "mesh_dp", ...).
        ranks: Global ranks of its members, in group order.
        backend: "gloo", "nccl", ...
    """

    name: str
    description: str = ""
    ranks: tuple[int, ...] = ()
    backend: str = ""


class Worker(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One training process.

    Attributes:
        global_rank: Rank in the job; 0 where the job has no ranks.
        local_rank: Rank on its host.
        world_size: Workers of the whole job.
        host: `EROICA_HOST`, default the host name.
        pid: Process id on that host.
        device: "cpu", "cuda:0", ...
        device_uuid: The driver's name of a CUDA device; its index counts only the devices that the process may see.
    """

    global_rank: int
    local_rank: int = 0
    world_size: int = 1
    host: str = ""
    pid: int = 0
    device: str = "cpu"
    device_uuid: str = ""


# --- along which axis of a job the members of a process group lie, by its description ---


Axis = Literal["stage", "tensor", "context", "expert", "replica", "shard", "data"]

#: Words of descriptions by axis: torchtitan's and DeviceMesh's short ones, Megatron-LM's long ones.
_AXES: dict[str, Axis] = {
    "pp": "stage", "pipe": "stage", "pipeline": "stage", "stage": "stage", "stages": "stage",
    "tp": "tensor", "tensor": "tensor",
    "cp": "context", "context": "context", "sp": "context", "sequence": "context", "ulysses": "context",
    "ep": "expert", "expert": "expert", "etp": "tensor",
    "dp": "data", "data": "data", "ddp": "data",
    "shard": "shard", "fsdp": "shard", "replicate": "replica", "replica": "replica",
}  # fmt: skip
#: Groups of the first and the last stage, which share weights.
_ACROSS = frozenset({"embedding", "embeddings", "tied"})
_DATA: frozenset[Axis] = frozenset({"data", "shard", "replica"})
_WORD = re.compile(r"[a-z]+")


@lru_cache(maxsize=1024)
def axis_of(description: str) -> Axis | None:
    """The one axis that members of a group so described lie along; None for groups over several axes, or of none.

    "EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP" spans three, "DATA_PARALLEL_GROUP_WITH_CP" and "mesh_dp_shard_cp"
    two, "EMBEDDING_GROUP" connects the first and the last stage: places in them are no coordinates.
    """
    words = set(_WORD.findall(description.lower()))
    axes = {_AXES[word] for word in words & _AXES.keys()}
    if axes <= _DATA and len(axes) > 1:
        axes.discard("data")
    return axes.pop() if len(axes) == 1 and _ACROSS.isdisjoint(words) else None
