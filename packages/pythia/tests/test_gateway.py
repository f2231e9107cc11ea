"""The gateway on real sockets: transparent, careful with failures, and never lost."""

from __future__ import annotations

import asyncio
import json
import logging

import httpx
import pytest

from pythia.profile import Profiles
from pythia.records import Step
from pythia.settings import REACTIVE
from stubs import Exchange, Stub, asking, complete, events, gateway, until

PLAIN = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 60))


async def raw(url: str, request: bytes) -> bytes:
    """Send bytes and return all bytes of the answer; the connection is closed by the other side."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    data = await reader.read()
    writer.close()
    return data


def trained() -> Profiles:
    """Profiles that know planner, engineer, verifier, with 40 runs."""
    profiles = Profiles()
    steps = []
    for i in range(40):
        for j, (role, tokens) in enumerate((("planner", 50), ("engineer", 90), ("verifier", 10))):
            steps.append(Step("w", f"r{i}", role, i * 10.0 + j, tokens + i % 3, 20, 0.5, "*", final=role == "verifier"))
    profiles.learn_log(steps)
    return profiles


@pytest.mark.parametrize("stream", [True, False])
def test_a_request_without_identifiers_passes_unchanged_both_ways(tmp_path, stream):
    async def go():
        async with Stub(complete) as stub, gateway([stub], tmp_path) as (url, _), httpx.AsyncClient() as client:
            body = json.dumps({**PLAIN, "stream": stream, "seed": 10**29}, indent=1).encode()
            headers = {"content-type": "application/json", "x-mine": "1", "authorization": "Bearer s3cret"}
            direct = await client.post(f"{stub.url}/v1/chat/completions?a=1&a=2", content=body, headers=headers)
            through = await client.post(f"{url}/v1/chat/completions?a=1&a=2", content=body, headers=headers)
            assert through.status_code == direct.status_code
            assert through.content == direct.content
            assert [h for h in through.headers.raw if h[0] != b"Transfer-Encoding"] == [
                h for h in direct.headers.raw if h[0] != b"Transfer-Encoding"
            ] or sorted(through.headers.multi_items()) == sorted(direct.headers.multi_items())
            one, other = stub.seen
            assert other.body == one.body == body
            assert other.target == one.target
            differ = {"host"}
            assert {(k.lower(), v) for k, v in other.headers if k.lower() not in differ} == {
                (k.lower(), v) for k, v in one.headers if k.lower() not in differ | {"connection"}
            }

    run(go())


def test_each_chunk_is_passed_on_at_once(tmp_path):
    async def go():
        more = asyncio.Event()

        async def slow(exchange: Exchange) -> None:
            await exchange.begin_stream()
            await exchange.chunk(b"data: 1\n\n")
            await more.wait()
            await exchange.chunk(b"data: 2\n\n")
            await exchange.end_stream()

        async with Stub(slow) as stub, gateway([stub], tmp_path) as (url, _), httpx.AsyncClient() as client:
            async with client.stream("POST", f"{url}/v1/chat/completions", json={**PLAIN, "stream": True}) as answer:
                chunks = answer.aiter_raw()
                assert await anext(chunks) == b"data: 1\n\n"  # before the stub goes on
                more.set()
                assert await anext(chunks) == b"data: 2\n\n"

    run(go())


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_while_the_model_thinks_ends_the_upstream_request(tmp_path, stream):
    async def go():
        gone = asyncio.Event()

        async def silent(exchange: Exchange) -> None:
            await exchange.gone()
            gone.set()

        async with Stub(silent) as stub, gateway([stub], tmp_path) as (url, made), httpx.AsyncClient() as client:
            with pytest.raises(httpx.ReadTimeout):
                await client.post(f"{url}/v1/chat/completions", json=asking(stream=stream), timeout=0.5)
            await asyncio.wait_for(gone.wait(), 10)
            await until(lambda: not any(r.active for r in made.scheduler.replicas.values()))

    run(go())


def test_abandoned_streams_leave_the_load_counters(tmp_path):
    async def go():
        async def endless(exchange: Exchange) -> None:
            if b'"short"' in exchange.body:
                await complete(exchange)
                return
            await exchange.begin_stream()
            await exchange.chunk(b"data: 1\n\n")
            await exchange.gone()

        async with Stub(endless) as one, Stub(endless) as two:
            async with (
                gateway([one, two], tmp_path, slots=40, policy=REACTIVE) as (url, made),
                httpx.AsyncClient(timeout=30) as client,
            ):

                async def hold() -> None:
                    async with client.stream(
                        "POST", f"{url}/v1/chat/completions", json={**PLAIN, "stream": True}
                    ) as answer:
                        await anext(answer.aiter_raw())
                        await asyncio.sleep(60)

                tasks = [asyncio.create_task(hold()) for _ in range(20)]
                await until(lambda: len(one.seen) + len(two.seen) == 20)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await until(lambda: not any(r.active for r in made.scheduler.replicas.values()))
                metrics = (await client.get(f"{url}/metrics")).text
                assert all(
                    line.endswith(" 0.0") for line in metrics.splitlines() if line.startswith("pythia_in_flight{")
                )
                before = len(one.seen), len(two.seen)
                short = [client.post(f"{url}/v1/chat/completions", json={**PLAIN, "user": "short"}) for _ in range(20)]
                assert all(a.status_code == 200 for a in await asyncio.gather(*short))
                after = len(one.seen) - before[0], len(two.seen) - before[1]
                assert min(after) >= 5

    run(go())


def test_an_upstream_that_dies_in_a_stream_never_looks_like_a_clean_end(tmp_path):
    async def go():
        async def dies(exchange: Exchange) -> None:
            await exchange.begin_stream()
            await exchange.chunk(events(1)[0])
            await exchange.chunk(events(2)[1])
            exchange.writer.write(b"40\r\ndata: {")
            await exchange.writer.drain()
            exchange.writer.transport.abort()

        async with Stub(dies) as stub, gateway([stub], tmp_path) as (url, made):
            body = json.dumps(asking(stream=True)).encode()
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            data = await raw(url, head + body)
            assert b'"engine_error"' in data
            assert b"[DONE]" not in data
            assert not data.endswith(b"0\r\n\r\n")
            await until(lambda: not any(r.active for r in made.scheduler.replicas.values()))

    run(go())


def test_errors_and_their_headers_pass_through_once(tmp_path):
    async def go():
        async def refuses(exchange: Exchange) -> None:
            limits = [
                ("Content-Type", "application/json"),
                ("Retry-After", "17"),
                ("x-ratelimit-remaining-tokens", "0"),
            ]
            await exchange.answer(
                "429 Too Many Requests" if b"busy" in exchange.body else "400 Bad Request", limits, b'{"error":1}'
            )

        async with Stub(refuses) as stub, gateway([stub], tmp_path) as (url, _), httpx.AsyncClient() as client:
            bad = await client.post(f"{url}/v1/chat/completions", json={**PLAIN, "stream": True})
            assert (bad.status_code, bad.content) == (400, b'{"error":1}')
            busy = await client.post(f"{url}/v1/chat/completions", json={**PLAIN, "user": "busy"})
            assert busy.status_code == 429
            assert busy.headers["retry-after"] == "17"
            assert busy.headers["x-ratelimit-remaining-tokens"] == "0"
            assert len(stub.seen) == 2

    run(go())


def test_connections_that_the_upstream_closes_as_they_are_used_again_fail_nothing(tmp_path):
    async def go():
        async with (
            Stub(complete, close_after_s=1.0) as stub,
            gateway([stub], tmp_path) as (url, _),
            httpx.AsyncClient() as client,
        ):
            for pause in (0.97, 0.99, 1.0, 1.01, 1.03):
                assert (await client.post(f"{url}/v1/chat/completions", json=PLAIN)).status_code == 200
                await asyncio.sleep(pause)
            assert len(stub.seen) == 5

    run(go())


def test_identifiers_leave_the_body_and_nothing_else_changes(tmp_path):
    async def go():
        async def strict(exchange: Exchange) -> None:
            unknown = set(json.loads(exchange.body)) - {
                "model",
                "messages",
                "max_tokens",
                "seed",
                "stream",
                "temperature",
            }
            if unknown or any(k.lower().startswith("x-") for k, _ in exchange.headers):
                await exchange.answer("400 Bad Request", [], f"unknown {unknown}".encode())
            else:
                await complete(exchange)

        async with Stub(strict) as stub, gateway([stub], tmp_path) as (url, made), httpx.AsyncClient() as client:
            ids = '"app_metadata":{"workflow_type_id":"w","workflow_id":"r","agent_id":"a"}'
            body = '{"model":"m", "seed":%d, %s, "temperature":0.10, "messages":[{"content":"h\\u00e9","role":"user"}],"stream":true}'
            sent = (body % (10**29 + 7, ids)).encode()
            answer = await client.post(f"{url}/v1/chat/completions", content=sent)
            assert answer.status_code == 200, answer.text
            assert stub.seen[0].body == (
                b'{"model":"m","seed":%d,"temperature":0.10,"messages":[{"content":"h\\u00e9","role":"user"}],"stream":true}'
                % (10**29 + 7)
            )
            assert answer.content == b"".join(events(3))  # no usage that nobody asked for
            headers = {"x-workflow-type-id": "w", "x-workflow-id": "r2", "x-agent-id": "a", "x-workflow-final": "true"}
            await client.post(f"{url}/v1/chat/completions", json=PLAIN, headers=headers)
            await until(lambda: made.profiles.finished == 1)
            run_ = next(iter(made.profiles.open.values()))
            assert run_.tokens == [3]  # lengths are learned without usage

    run(go())


@pytest.mark.parametrize(
    "metadata",
    [{"workflow_id": "r"}, {"workflow_type_id": "w", "workflow_id": "r", "agent_id": "x" * 200},
     {"workflow_type_id": "w\n", "workflow_id": "r", "agent_id": "a"}, {"workflow_type_id": {"a": 1}, "workflow_id": "r", "agent_id": "a"}],
)  # fmt: skip
def test_identifiers_that_cannot_be_used_are_refused_with_a_reason(tmp_path, metadata):
    async def go():
        async with Stub(complete) as stub, gateway([stub], tmp_path) as (url, _), httpx.AsyncClient() as client:
            answer = await client.post(f"{url}/v1/chat/completions", json={**PLAIN, "app_metadata": metadata})
            assert answer.status_code == 400
            assert (
                "app_metadata" in answer.json()["error"]["message"]
                or "identifiers" in answer.json()["error"]["message"]
            )
            assert not stub.seen

    run(go())


def test_hints_have_the_engines_names_and_directions(tmp_path):
    async def go():
        for kind in ("vllm", "dynamo"):
            found = {}
            async with (
                Stub(complete) as stub,
                gateway([stub], tmp_path, kind=kind, slots=8, profiles=trained()) as (url, _),
            ):
                async with httpx.AsyncClient() as client:
                    for role in ("planner", "engineer", "verifier"):
                        await client.post(f"{url}/v1/chat/completions", json=asking(role, "live"))
                        body = json.loads(stub.seen[-1].body)
                        found[role] = body["priority"] if kind == "vllm" else body["nvext"]["agent_hints"]["priority"]
                        assert isinstance(found[role], int)
                        if kind == "dynamo":
                            assert set(body["nvext"]["agent_hints"]) == {"priority", "osl", "speculative_prefill"}
                            assert isinstance(body["nvext"]["agent_hints"]["osl"], int)
                    mine = asking("planner", "own") | {"priority": 5, "nvext": {"x": 1}}
                    await client.post(f"{url}/v1/chat/completions", json=mine)
                    assert (json.loads(stub.seen[-1].body)["priority"], json.loads(stub.seen[-1].body)["nvext"]) == (
                        5,
                        {"x": 1},
                    )
            urgent = sorted(found, key=lambda role: found[role] if kind == "vllm" else -found[role])
            assert urgent == ["verifier", "engineer", "planner"]

    run(go())


def test_invented_names_fill_neither_metrics_nor_profiles_and_push_nothing_out(tmp_path):
    async def go():
        profiles = trained()
        async with Stub(complete) as stub, gateway([stub], tmp_path, slots=64, profiles=profiles) as (url, made):
            async with httpx.AsyncClient(timeout=60) as client:
                for start in range(0, 400, 40):
                    asks = [
                        client.post(f"{url}/v1/chat/completions", json=asking(f"role{i}", f"r{i}", f"type{i}"))
                        for i in range(start, start + 40)
                    ]
                    await asyncio.gather(*asks)
                metrics = (await client.get(f"{url}/metrics")).text
            assert "type" not in metrics.replace("# TYPE", "").replace("Content-Type", "").replace("workflow type", "")
            assert len(metrics) < 50_000
            assert len(made.profiles.known) <= 256 + 1
            assert made.profiles.known["*", "w"].runs == 40

    run(go())


def test_long_headers_other_methods_and_headers_beyond_ascii_pass(tmp_path):
    async def go():
        async def long(exchange: Exchange) -> None:
            await exchange.answer(
                "200 OK", [("X-Long", "x" * 20_000), ("Set-Cookie", "a=1"), ("Set-Cookie", "b=2")], b""
            )

        async with Stub(long) as stub, gateway([stub], tmp_path) as (url, _), httpx.AsyncClient() as client:
            answer = await client.delete(
                f"{url}/v1/files/1", headers={"x-name": "gr\u00fc\u00df".encode(), "cookie": "c=3"}
            )
            assert len(answer.headers["x-long"]) == 20_000
            assert answer.headers.get_list("set-cookie") == ["a=1", "b=2"]
            assert stub.seen[0].method == "DELETE"
            assert stub.seen[0].header("x-name") == "gr\u00fc\u00df".encode().decode("latin-1")
            assert stub.seen[0].header("cookie") == "c=3"
            odd = await client.get(f"{url}/v1/models/x", headers={"x-name": b"\xff"})
            assert odd.status_code == 400

    run(go())


def test_a_target_passes_as_it_stands(tmp_path):
    async def go():
        async with Stub(complete) as stub, gateway([stub], tmp_path) as (url, _):
            await raw(url, b"GET /v1/models/org%2Fname?x=1&x=2 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert stub.seen[0].target == "/v1/models/org%2Fname?x=1&x=2"

    run(go())


def test_dead_and_slow_upstreams_give_clear_errors_and_others_take_over(tmp_path):
    async def go():
        async def never(exchange: Exchange) -> None:
            await exchange.gone()

        async with Stub(complete) as dead, Stub(complete) as good:
            dead.server.close()
            async with gateway([dead, good], tmp_path, slots=4) as (url, made), httpx.AsyncClient() as client:
                answers = await asyncio.gather(
                    *(client.post(f"{url}/v1/chat/completions", json=PLAIN) for _ in range(6))
                )
                assert {a.status_code for a in answers} == {200}
                assert made.scheduler.replicas[dead.url].state == "sick"
        async with (
            Stub(never) as slow,
            gateway([slow], tmp_path, read_s=0.3) as (url, _),
            httpx.AsyncClient() as client,
        ):
            answer = await client.post(f"{url}/v1/chat/completions", json=PLAIN)
            assert answer.status_code == 504
            assert "read_s" in answer.json()["error"]["message"]
        async with Stub(complete) as dead:
            dead.server.close()
            async with gateway([dead], tmp_path) as (url, _), httpx.AsyncClient() as client:
                answer = await client.post(f"{url}/v1/chat/completions", json=PLAIN)
                assert answer.status_code in (502, 503)
                assert "retry-after" in answer.headers

    run(go())


def test_huge_bodies_are_refused(tmp_path):
    async def go():
        async with (
            Stub(complete) as stub,
            gateway([stub], tmp_path, most_body_bytes=1000) as (url, _),
            httpx.AsyncClient() as client,
        ):
            answer = await client.post(f"{url}/v1/chat/completions", content=b"x" * 2000)
            assert answer.status_code == 413
            assert not stub.seen

    run(go())


def test_the_most_urgent_waits_least_and_a_first_step_beyond_the_limit_is_refused(tmp_path):
    async def go():
        free = asyncio.Event()

        async def wait(exchange: Exchange) -> None:
            await free.wait()
            await complete(exchange)

        async with Stub(wait) as stub, gateway([stub], tmp_path, slots=1, profiles=trained()) as (url, made):
            async with httpx.AsyncClient(timeout=30) as client:
                tasks = [asyncio.create_task(client.post(f"{url}/v1/chat/completions", json=asking("planner", "a")))]
                await until(lambda: len(stub.seen) == 1)
                for role, name in (("planner", "b"), ("verifier", "c")):
                    tasks.append(
                        asyncio.create_task(
                            client.post(f"{url}/v1/chat/completions", json=asking(role, name, user=name))
                        )
                    )
                    await until(lambda: len(made.scheduler.waiting) == len(tasks) - 1)
                free.set()
                await asyncio.gather(*tasks)
                assert [json.loads(e.body).get("user") for e in stub.seen] == [None, "c", "b"]
                metrics = (await client.get(f"{url}/metrics")).text
                assert "pythia_wait_seconds_count 3.0" in metrics
        free.clear()
        settings = {"refuse_beyond_limit": True, "limit_s": 0.001}
        async with (
            Stub(wait) as stub,
            gateway([stub], tmp_path, slots=1, profiles=trained(), **settings) as (url, made),
        ):
            made.dispatcher.retention.step_s = 5.0
            async with httpx.AsyncClient(timeout=30) as client:
                tasks = [
                    asyncio.create_task(client.post(f"{url}/v1/chat/completions", json=asking("planner", str(i))))
                    for i in range(2)
                ]
                await until(lambda: len(made.scheduler.waiting) == 1)
                refused = await client.post(f"{url}/v1/chat/completions", json=asking("planner", "z"))
                assert refused.status_code == 429
                assert int(refused.headers["retry-after"]) >= 1
                free.set()
                await asyncio.gather(*tasks)

    run(go())


def test_a_dry_run_changes_nothing_and_says_what_it_would_do(tmp_path, caplog):
    async def go():
        async with (
            Stub(complete) as stub,
            gateway([stub], tmp_path, kind="vllm", dry_run=True, profiles=trained()) as (url, _),
        ):
            async with httpx.AsyncClient() as client:
                await client.post(
                    f"{url}/v1/chat/completions",
                    json=asking("planner", "a"),
                    headers={"authorization": "Bearer s3cret"},
                )
                assert "pythia_dry_run_total" in (await client.get(f"{url}/metrics")).text
            assert "priority" not in json.loads(stub.seen[0].body)

    with caplog.at_level(logging.INFO, "pythia"):
        run(go())
    assert "engineer next (100%)" in caplog.text
    assert "s3cret" not in caplog.text
    assert "hello" not in caplog.text


def test_profiles_survive_a_restart_hold_no_prompt_and_are_kept_apart_by_tenant(tmp_path):
    async def go():
        log = tmp_path / "log.jsonl"
        async with Stub(complete) as stub, gateway([stub], tmp_path, log=str(log)) as (url, made):
            async with httpx.AsyncClient() as client:
                for i in range(22):
                    for role in ("planner", "engineer"):
                        body = asking(
                            role, f"r{i}", messages=[{"role": "user", "content": f"Secret plan {i}\nwrite it down"}]
                        )
                        body["app_metadata"]["final"] = role == "engineer"
                        await client.post(
                            f"{url}/v1/chat/completions", json=body, headers={"authorization": f"Bearer key{i % 2}"}
                        )
            await until(lambda: made.profiles.finished == 22)
        data = (tmp_path / "profiles.bin").read_bytes() + log.read_bytes()
        assert b"Secret" not in data
        assert b"key0" not in data
        loaded = Profiles.load(tmp_path / "profiles.bin")
        assert sorted(p.runs for p in loaded.known.values()) == [11, 11]
        assert loaded.known == {} or len({tenant for tenant, _ in loaded.known}) == 2
        again = Profiles()
        from pythia.profile import read_log

        assert again.learn_log(read_log(log)) == 22

    run(go())


def test_a_changed_workflow_is_counted_and_named_in_the_log(tmp_path, caplog):
    async def go():
        async with Stub(complete) as stub, gateway([stub], tmp_path) as (url, made), httpx.AsyncClient() as client:
            for i in range(40):
                for role in ("planner", "engineer") if i < 25 else ("engineer", "tester", "planner"):
                    body = asking(role, f"r{i}")
                    body["app_metadata"]["final"] = role == ("engineer" if i < 25 else "planner")
                    await client.post(f"{url}/v1/chat/completions", json=body)
            await until(lambda: made.profiles.finished == 40 and not made.profiles.changes)
            assert 'pythia_workflow_changes_total{workflow="w"} 1.0' in (await client.get(f"{url}/metrics")).text

    with caplog.at_level(logging.WARNING, "pythia"):
        run(go())
    assert "workflow 'w' has changed" in caplog.text


def test_page_and_state_show_replicas_and_the_bound_in_use(tmp_path):
    async def go():
        async with (
            Stub(complete) as stub,
            gateway([stub], tmp_path, kv=4096, profiles=trained()) as (url, _),
            httpx.AsyncClient() as client,
        ):
            await client.post(f"{url}/v1/chat/completions", json=asking())
            page = (await client.get(f"{url}/pythia")).text
            assert "it needs 79 answers" in page
            assert stub.url in page
            state = (await client.get(f"{url}/pythia/state")).json()
            assert state["steps"][0]["role"] == "planner"
            held = await client.post(f"{url}/pythia/replicas", json={"url": stub.url, "state": "sick"})
            assert held.json()["state"] == "held"
            assert (await client.post(f"{url}/pythia/replicas", json={"url": "x"})).status_code == 400

    run(go())
