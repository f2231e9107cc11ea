"""Engines behind the gateway: hints in their own words, health, and processes that are started and stopped."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence

import aiohttp

from pythia.errors import EngineError
from pythia.records import Job, Prediction
from pythia.schedule import Replica
from pythia.settings import Launch

log = logging.getLogger("pythia")
#: Seconds that a process gets between SIGTERM and SIGKILL.
GRACE_S = 10.0


def hints(
    kind: str, score: float, prediction: Prediction, job: Job, fields: Mapping[str, object], name: Callable[[str], str]
) -> dict[str, object]:
    """Return what is added to a request's body, in the names of the engine.

    A client's own fields win: nothing is added that the body already has.

    Args:
        kind: Kind of the engine.
        score: Base priority, larger is more urgent.
        prediction: What is expected.
        job: The request.
        fields: Members of the body.
        name: Gives the name under which an engine knows a prefix.
    """
    urgency = round(1000 * score)
    if kind == "dynamo" and "nvext" not in fields:
        agent = {
            "priority": urgency,  # Dynamo serves higher values first
            "osl": max(1, round(prediction.expected)) if prediction.expected else job.bound,
            "speculative_prefill": prediction.next_probability >= 0.5 and bool(prediction.next_role),
        }
        return {"nvext": {"agent_hints": agent}}
    added: dict[str, object] = {}
    if kind in ("vllm", "pythia") and "priority" not in fields:
        added["priority"] = -urgency  # vLLM serves lower values first, and so does our engine
    if kind == "pythia":
        added["pythia"] = {"role": name(job.role_group), "group": name(job.group)}
    return added


def free_port() -> int:
    """Return a port of this host that is free now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Processes:
    """Engines that the gateway starts itself."""

    def __init__(self) -> None:
        self.running: dict[str, asyncio.subprocess.Process] = {}

    async def start(self, name: str, launch: Launch, client: aiohttp.ClientSession) -> str:
        """Start an engine and return its URL once it answers.

        Raises:
            EngineError: It ended, or did not answer in time.
        """
        port = free_port()
        command = [part.replace("{port}", str(port)) for part in launch.command]
        try:
            process = await asyncio.create_subprocess_exec(*command, start_new_session=True)
        except OSError as error:
            raise EngineError(f"cannot start {command[0]!r} ({error.strerror}); check launch.command") from error
        url = f"http://127.0.0.1:{port}"
        self.running[name] = process
        deadline = time.monotonic() + launch.start_s
        while time.monotonic() < deadline:
            if process.returncode is not None:
                del self.running[name]
                raise EngineError(f"{name} ended with status {process.returncode}; run it by hand: {command}")
            if await healthy(client, url):
                return url
            await asyncio.sleep(0.1)
        await self.stop(name)
        raise EngineError(f"{name}: no answer within {launch.start_s:g} s; raise launch.start_s")

    def ended(self, starting: set[str]) -> list[str]:
        """Forget the engines that have ended by themselves after their start; return their names."""
        names = [n for n, process in self.running.items() if process.returncode is not None and n not in starting]
        for name in names:
            del self.running[name]
        return names

    async def stop(self, name: str) -> None:
        """End an engine that has been drained."""
        process = self.running.pop(name, None)
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), GRACE_S)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()

    async def stop_all(self) -> None:
        """End all of them."""
        await asyncio.gather(*(self.stop(name) for name in list(self.running)))


async def healthy(client: aiohttp.ClientSession, url: str) -> bool:
    """Return whether an engine answers a GET of /health or /v1/models."""
    for path in ("/health", "/v1/models"):
        try:
            async with client.get(url + path, timeout=aiohttp.ClientTimeout(2.0)) as answer:
                if answer.status == 200:
                    return True
        except (aiohttp.ClientError, TimeoutError):
            return False
    return False


async def probe(replicas: Sequence[Replica], client: aiohttp.ClientSession) -> None:
    """Bring replicas back that have been out of reach."""
    for replica in replicas:
        if replica.state == "sick" and await healthy(client, replica.url):
            replica.state = "ready"
            log.warning("replica %s answers again", replica.name)
