"""Read other facts that a worker knows of itself: ranks, device, process groups, thread names, work enqueued."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from eroica.wire.places import host_name
from eroica.worker.kineto import Silence
from eroica.worker.pristine import get_ident, get_native_id, python_threads

_REPORTS_LATE = "gloo:"
_RECORDER = "_dump_fr_trace_json"


def torch_distributed() -> Any:
    """torch.distributed if a process group exists, else None."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed


def _number(environ: Mapping[str, str], *names: str) -> int | None:
    for name in names:
        text = environ.get(name, "")
        if text.isdigit():
            return int(text)
    return None


def ranks(environ: Mapping[str, str]) -> tuple[int, int, int]:
    """Global rank, local rank and world size of this process.

    From torch.distributed if it is set up (under `mp.spawn` the environment knows nothing, or only the launcher's
    task); else from torchrun's or Slurm's variables; else a job of one.
    """
    distributed = torch_distributed()
    if distributed is not None:
        rank, world = int(distributed.get_rank()), int(distributed.get_world_size())
    else:
        rank = _number(environ, "RANK", "SLURM_PROCID") or 0
        world = max(1, _number(environ, "WORLD_SIZE", "SLURM_NTASKS") or 1, rank + 1)
    local = _number(environ, "LOCAL_RANK")
    if local is None and _number(environ, "SLURM_PROCID") == rank:
        local = _number(environ, "SLURM_LOCALID")
    return rank, rank if local is None else local, world


def device_of(optimizer: Any) -> str:
    """Device of an optimizer's first parameter, e.g. "cuda:0"; "cpu" if there is none."""
    for group in getattr(optimizer, "param_groups", ()):
        for parameter in group.get("params", ()):
            return str(getattr(parameter, "device", "cpu"))
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return f"cuda:{torch.cuda.current_device()}"
    return "cpu"


def device_uuid(device: str) -> str:
    """Return the driver's UUID of a CUDA device, the same in every process.

    Before torch 2.4 its PCI address is returned; the text is empty where neither is known.

    Args:
        device: As `device_of` says.
    """
    torch = sys.modules.get("torch")
    if torch is None or not device.startswith("cuda"):
        return ""
    try:
        if not torch.cuda.is_initialized():  # asking would initialize it
            return ""
        _, _, index = device.partition(":")
        known = torch.cuda.get_device_properties(int(index) if index else torch.cuda.current_device())
        uuid = getattr(known, "uuid", None)
        if uuid is not None:
            return str(uuid)
        return f"{known.pci_domain_id:04x}:{known.pci_bus_id:02x}:{known.pci_device_id:02x}.0"
    except (AttributeError, AssertionError, RuntimeError, TypeError, ValueError):  # good to know, but not needed
        return ""


def identity(environ: Mapping[str, str], optimizer: Any, training_thread_id: int) -> dict[str, Any]:
    """Everything on the identity page of the beat file.

    Args:
        environ: Of the process.
        optimizer: The one that stepped first.
        training_thread_id: What `training_thread` returned in the thread that trains.
    """
    global_rank, local_rank, world_size = ranks(environ)
    device = device_of(optimizer)
    return {
        "global_rank": global_rank,
        "local_rank": local_rank,
        "world_size": world_size,
        "host": host_name(environ),
        "pid": os.getpid(),
        "device": device,
        "device_uuid": device_uuid(device),
        "training_thread_id": training_thread_id,
        "process_start": process_start(),
        **meeting_point(environ),
    }


def meeting_point(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the number of workers on this host, and host and port of the store where workers of all hosts met.

    The number is 0 where it is unknown.

    As torch itself knows it, else from the environment; empty where it is no TCP store. Nothing is asked of the store.
    """
    address, port = environ.get("MASTER_ADDR", ""), _number(environ, "MASTER_PORT") or 0
    store: Any = None
    if torch_distributed() is not None:
        with contextlib.suppress(AttributeError, LookupError, RuntimeError, ValueError):  # private, so it may go
            store = sys.modules["torch.distributed.distributed_c10d"]._get_default_store()
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    if type(store).__name__ == "TCPStore":
        address, port = str(store.host), int(store.port)
    return {
        "local_world_size": _number(environ, "LOCAL_WORLD_SIZE") or _tasks_on_this_node(environ),
        "master_addr": address[:253],
        "master_port": port,
    }


def _tasks_on_this_node(environ: Mapping[str, str]) -> int:
    """Slurm's tasks on this node, if this process is one; 0 if unknown. "2(x3),1": two on three nodes, then one."""
    node, text = _number(environ, "SLURM_NODEID"), environ.get("SLURM_STEP_TASKS_PER_NODE", "")
    if node is None or _number(environ, "SLURM_PROCID") != ranks(environ)[0]:
        return 0
    for part in text.split(","):
        tasks, _, times = part.partition("(x")
        nodes = int(times[:-1]) if times[:-1].isdigit() else 1
        if node < nodes:
            return int(tasks) if tasks.isdigit() else 0
        node -= nodes
    return 0


def process_start() -> int:
    """Read this process's start, clock ticks since boot, which with its id names it for good; 0 if unknown."""
    try:
        return int(Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[19])
    except (OSError, LookupError, ValueError):
        return 0


def in_backward() -> bool:
    """This thread is inside a backward pass, as an optimizer is that steps in hooks of gradients.

    torch gives each piece of it the state of the thread that began it, so a profiler started here is lost at its end.
    """
    ask = getattr(getattr(sys.modules.get("torch"), "_C", None), "_current_graph_task_id", None)
    return ask is not None and ask() >= 0


def training_thread() -> int:
    """Kernel thread id of the thread that trains.

    That is this one, unless torch has started it for a backward pass: then the main one, which waits for that.
    """
    main, here = threading.main_thread(), get_ident()
    ours = {one.ident for one in python_threads() if not isinstance(one, threading._DummyThread)}
    if in_backward() and main.native_id and main.ident and here not in ours:
        return main.native_id
    return get_native_id()


def in_loader_child() -> bool:
    """This process only loads data for another one."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


def thread_names() -> dict[str, str]:
    """Kernel thread id, as text, to the name of Python's threads."""
    return {str(thread.native_id): thread.name for thread in python_threads() if thread.native_id}


def loader_children(iterator: Any) -> list[int]:
    """Process ids of a loader iterator's children."""
    return [worker.pid for worker in getattr(iterator, "_workers", ()) if worker.pid]


def process_groups() -> list[dict[str, Any]]:
    """The groups that this worker is a member of, as `eroica.model.worker.ProcessGroup`."""
    if torch_distributed() is None:
        return []
    world = sys.modules["torch.distributed.distributed_c10d"]._world
    groups = []
    for group, name in list(world.pg_names.items()):
        members = world.pg_group_ranks.get(group, {})
        groups.append(
            {
                "name": str(name),
                "description": str(getattr(group, "group_desc", "")).replace("undefined", ""),  # torch's word for none
                "ranks": sorted(members, key=members.__getitem__),
                "backend": str(world.pg_map.get(group, ("",))[0]),
            }
        )
    return groups


def flight_dump() -> bytes:
    """The Flight Recorder's entries as JSON (gloo's, where NCCL has a recorder of its own); empty if there is none."""
    return _dump(_RECORDER) or nccl_flight_dump()


def nccl_flight_dump() -> bytes:
    """The entries of NCCL's recorder as JSON; empty where there is none, as in builds without CUDA.

    Asks the device what has ended, so it is for a job that stands still or ends, not for the training.
    """
    return _dump("_dump_nccl_trace_json")


def device_idle() -> bool:
    """Return whether the device has done its work, as far as it can be asked without waiting for it.

    Asked are the calling thread's stream, which the training lets wait for its collectives, and NCCL's recorder for
    collectives that nothing has waited for yet (it never learns the end of sends and receives in a batch). torch keeps
    no list of all streams.
    """
    if not sys.modules["torch"].cuda.current_stream().query():
        return False
    entries = json.loads(nccl_flight_dump() or b"{}").get("entries", ())
    return all(entry["state"] == "completed" or entry["is_p2p"] for entry in entries)


def _dump(name: str, collectives: bool = True, active: bool = False) -> bytes:
    """Read a recorder of torch's as JSON; empty where there is none: before torch 2.10, or switched off."""
    if torch_distributed() is None:
        return b""
    dump: Callable[..., Any] | None = getattr(sys.modules.get("torch._C._distributed_c10d"), name, None)
    if dump is None:
        return b""
    text = dump(includeCollectives=collectives, onlyActive=active)
    return text if isinstance(text, bytes) else str(text).encode()


def counts_of(record: dict[str, Any], name: str) -> dict[str, int]:
    """Return one of the numbers that torch keeps of each process group, by its number of the group."""
    return {group: int(counts[name]) for group, counts in record.get("pg_status", {}).items()}


def collectives_enqueued() -> dict[str, int]:
    """Number of the last collective enqueued so far, by process group; empty where they are not counted. 50 µs."""
    return counts_of(json.loads(_dump(_RECORDER, collectives=False, active=True) or b"{}"), "last_enqueued_collective")


def collectives_completed(enqueued: Mapping[str, int], before_ns: int) -> bool:
    """Return whether every collective enqueued up to a moment has ended and reported to the profiler.

    gloo works on two collectives of a group at a time, so the number of the last one that ended proves nothing about
    the one before it: each is looked up. That takes 30 ms when the recorder's 2000 places are full. Only when it has
    forgotten that moment altogether do the numbers count. Other backends do not report to the profiler from afar.

    Args:
        enqueued: What `collectives_enqueued` returned at that moment.
        before_ns: That moment, CLOCK_REALTIME.

    Returns:
        True also where nobody records collectives.
    """
    text = _dump(_RECORDER, active=True) if enqueued else b""
    if not text:
        return True
    record = json.loads(text)
    earlier = [entry for entry in record.get("entries", ()) if entry["time_created_ns"] <= before_ns]
    if any(not entry["retired"] for entry in earlier if entry["profiling_name"].startswith(_REPORTS_LATE)):
        return False
    completed = counts_of(record, "last_completed_collective")
    return bool(earlier) or all(completed.get(group, number) >= number for group, number in enqueued.items())


def quiet_after_fork() -> None:
    """Record nothing in a child forked while a window is open: nothing would ever collect it."""
    Silence().begin()
