"""The real engine: transformers' continuous batching, in this process and behind HTTP. Minutes on a busy machine."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import httpx
import pytest

from pythia.agents import drive, words
from pythia.gateway import Gateway
from pythia.profile import Profiles
from pythia.settings import Launch, Model, Policy, Replica, Settings
from pythia.workflow import arrivals, read_workflow
from stubs import serving, until

pytest.importorskip("transformers", reason="transformers is not installed")
pytestmark = [pytest.mark.thorough, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]


def command(model: Path, *, slots: int = 4, kv_tokens: int = 4096) -> list[str]:
    return [
        sys.executable,
        "-m",
        "pythia.cli",
        "engine",
        str(model),
        "--tiny",
        "--port",
        "{port}",
        "--slots",
        str(slots),
        "--kv-tokens",
        str(kv_tokens),
    ]


def test_the_parts_of_transformers_that_the_adapter_uses_are_there():
    """The contract: names and shapes that `pythia.continuous` relies on."""
    from transformers import __version__
    from transformers.generation.continuous_batching import scheduler
    from transformers.generation.continuous_batching.cache import PagedAttentionCache
    from transformers.generation.continuous_batching.cache_allocators.cache_allocator import BlockLedger, CacheAllocator

    assert __version__.startswith("5.24.")
    assert {"fifo"} <= set(scheduler.SCHEDULER_MAPPING)
    for name in ("_get_waiting_candidates", "schedule_batch", "add_waiting_request", "finish_request"):
        assert hasattr(scheduler.FIFOScheduler, name)
    ledger = BlockLedger()
    assert (ledger.cached_blocks, ledger.block_to_hash, ledger.hash_to_block) == ({}, {}, {})
    for name in ("compute_free_capacity", "search_prefix_match", "evict_cached_blocks"):
        assert hasattr(PagedAttentionCache, name)
    assert hasattr(CacheAllocator, "free_blocks")


def test_priority_prefix_sharing_values_and_pressure_in_a_real_engine(tmp_path):
    from pythia.engine import Server, make_model

    async def go():
        server = Server(str(make_model(tmp_path / "tiny", hidden=64, layers=2)), slots=2, kv_tokens=2048)
        encode = server.tokenizer.encode
        done: list[str] = []

        async def ask(name: str, text: str, most: int, priority: int = 0, role: str = "", group: str = "") -> list[int]:
            last: list[int] = []
            async for tokens in server.generate(encode(text), most, priority, role, group):
                last = tokens
            done.append(name)
            return last

        same = [await ask("warm", words("role", 600) + str(i), 4, 0, "R", f"R{i}") for i in range(2)]
        assert all(len(tokens) == 4 for tokens in same)
        assert server.counts["cached_tokens"] >= 560
        assert 590 <= len(server.board.prefix["R"]) <= 601

        done.clear()
        await asyncio.gather(*(ask(f"p{i}", words(str(i), 50), 12, priority=-i) for i in range(8)))
        assert done.index("p7") < done.index("p2")  # p0 and p1 had started

        server.board.set_values({"R": 1.0})
        for i in range(12):  # fills the cache several times over
            await ask("other", words(f"other{i}", 400), 4, 0, f"O{i}", f"O{i}g")
        assert server.board.evicted > 0
        before = server.counts["cached_tokens"]
        await ask("again", words("role", 600) + "x", 4, 0, "R", "R9")
        assert server.counts["cached_tokens"] - before >= 560  # kept, although it was the least recently used

        big = await asyncio.gather(
            *(ask(f"b{i}", words(f"big{i}", 500), 600, priority=i, group=f"g{i}") for i in range(4))
        )
        assert [len(tokens) for tokens in big] == [600] * 4  # more than the cache holds at once: preempted, none lost
        await asyncio.to_thread(server.manager.stop, block=True)

    asyncio.run(asyncio.wait_for(go(), 500))


def test_agents_on_real_engines_that_start_die_and_drain(tmp_path):
    model = tmp_path / "tiny"

    async def go():
        described = Replica("http://x", 4, 4096, "pythia")
        settings = Settings(
            {"*": Model(launch=Launch(command(model), described, 1, 2, start_s=400))}, profiles=str(tmp_path / "p.bin"),
            policy=Policy(scale="pythia"), cool_s=1.0,
        )  # fmt: skip
        async with serving(Gateway(settings, Profiles())) as (url, made):
            await until(lambda: any(r.state == "ready" for r in made.scheduler.replicas.values()), 400)
            plans = arrivals([(read_workflow("support"), 1.0)], 3.0, 2.0, 1)
            outcome = await drive(plans, url, "tiny")
            assert outcome.failed == 0
            assert [r.output_tokens for r in sorted(outcome.records, key=lambda r: (r.run, r.place))] == [
                s.output for p in sorted(plans, key=lambda p: p.name) for s in p.steps
            ]
            (name,) = [n for n, r in made.scheduler.replicas.items() if r.state == "ready"][:1]
            async with httpx.AsyncClient(timeout=120) as client:
                body = {
                    "model": "tiny",
                    "messages": [{"role": "user", "content": "x"}],
                    "max_tokens": 2000,
                    "stream": True,
                }
                async with client.stream("POST", f"{url}/v1/chat/completions", json=body) as answer:
                    chunks = answer.aiter_raw()
                    await anext(chunks)
                    made.processes.running[name].kill()
                    with pytest.raises(httpx.HTTPError):
                        while chunk := await anext(chunks):
                            assert b"[DONE]" not in chunk
            await until(lambda: name not in made.scheduler.replicas, 60)

    asyncio.run(asyncio.wait_for(go(), 580))
