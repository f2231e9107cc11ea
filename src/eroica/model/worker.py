"""Who takes part: a worker, its process groups."""

from __future__ import annotations

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
