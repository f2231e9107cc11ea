"""A standby process: it runs the job's script in the sandbox, once in each role, and waits for a rank.

`trainmover standby` starts it, and so does a supervisor if a rank is lost and there is no standby.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import os
import runpy
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from trainmover import faults
from trainmover import group as _group
from trainmover.agent import Agent
from trainmover.context import Context, context
from trainmover.errors import RefusedError, TrainmoverError
from trainmover.job import RECORDED_ITERATIONS, Role, facts
from trainmover.sandbox import Recording, Replay
from trainmover.wire import Message


def main() -> int:
    """Join the job at TRAINMOVER_CONTROLLER; return the exit status."""
    _group.register()
    owner = context()
    agent = Agent(os.environ["TRAINMOVER_CONTROLLER"], facts("standby", owner), owner)
    owner.agent = agent
    try:
        agent.start()
    except RefusedError as error:
        return _complain(f"refused: {error}")
    agent.wait(lambda: bool(agent.warm or agent.leave or agent.finished), 1e7, "the job's recording")
    if agent.warm is None:
        return _complain(agent.leave or "the job has ended")
    job, roles = agent.warm["job"], list(agent.warm["roles"])
    os.chdir(job["cwd"])
    sys.argv = list(job["argv"])
    sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
    role, owner.roles_left = roles[0], roles[1:]
    recordings = {signature: blob for signature, blob in agent.recordings.items() if blob}
    while True:
        try:
            next_role = _run_as(role, owner, Recording.from_bytes(recordings[role["signature"]]))
        except TrainmoverError as error:
            return _unfit(agent, owner, str(error))
        except Exception as error:  # noqa: BLE001 - whatever the script raises, in the sandbox or after it
            traceback.print_exc()
            return _unfit(agent, owner, f"the script raised {type(error).__name__}: {error}")
        if next_role is None:
            return 0 if agent.leave is None else _complain(agent.leave)
        role = next_role


def _run_as(role: Message, owner: Context, recording: Recording) -> Message | None:
    """Run the script in one role. Return the next role, or None at the end of the script."""
    os.environ.update(role["env"])
    owner.rank, owner.replay = int(role["rank"]), Replay(recording)
    # in every role: DDP settles its buckets in the second iteration
    owner.shadow_iterations = 0 if faults.enabled("cold") else RECORDED_ITERATIONS
    owner.agent.ready, owner.agent.iteration_s = False, 0.0
    try:
        with _local_rendezvous(owner.rank, int(os.environ["WORLD_SIZE"])):
            runpy.run_path(sys.argv[0], run_name="__main__")
    except Role as unwound:
        with contextlib.suppress(Exception):
            dist.destroy_process_group()
        for one in list(owner.groups.values()):
            one.shutdown()
        owner.groups.clear()
        _forget_meshes()
        gc.collect()
        return unwound.role
    return None


def _forget_meshes() -> None:
    """Empty torch.distributed's caches.

    A tensor-parallel layer's plan is found by its mesh's shape and ranks, which all roles have in common, and leads to
    the groups of the role that was run before, which are gone.
    """
    for one in gc.get_objects():
        if isinstance(one, functools._lru_cache_wrapper) and str(one.__module__).startswith("torch.distributed"):
            one.cache_clear()
    clear = getattr(torch._C, "_clear_DTensor_sharding_propagator_cache", None)  # that of the dispatcher, in C++
    if clear is not None and "torch.distributed.tensor" in sys.modules:
        clear()


@contextlib.contextmanager
def _local_rendezvous(rank: int, world: int) -> Iterator[None]:
    """Give `init_process_group` a store of this process's own while it is in the sandbox."""

    def alone(_url: str, **_options: Any) -> Iterator[tuple[Any, int, int]]:
        yield dist.HashStore(), rank, world

    handlers = importlib.import_module(
        "torch.distributed.rendezvous"
    )._rendezvous_handlers  # the name is a function's too
    before = handlers["env"]
    handlers["env"] = alone
    try:
        yield
    finally:
        handlers["env"] = before


def _unfit(agent: Agent, owner: Context, reason: str) -> int:
    if owner.replay is not None:
        agent.report("unfit", reason=reason)
    return _complain(reason)


def _complain(reason: str) -> int:
    sys.stderr.write(f"trainmover: {reason}\n")
    return 1


if __name__ == "__main__":
    sys.stdout.flush()
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # threads that wait for messages need no ceremony
