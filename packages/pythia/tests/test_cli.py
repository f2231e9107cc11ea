"""Commands, files and agents."""

from __future__ import annotations

import asyncio
import json

import pytest
from click.testing import CliRunner

from pythia.agents import drive
from pythia.cli import main
from pythia.errors import BadConfig, BadFile, EngineError
from pythia.page import Bar, View, render
from pythia.recorded import read_recording
from pythia.settings import read_settings
from pythia.workflow import arrivals, read_workflow
from stubs import Stub, complete, gateway


def call(*arguments: object, status: int = 0) -> str:
    result = CliRunner().invoke(main, [str(a) for a in arguments])
    assert result.exit_code == status, result.output
    return result.output


def log(path, runs: int = 40):
    lines = []
    for i in range(runs):
        for j, (role, tokens) in enumerate((("planner", 50), ("engineer", 90 + i % 7))):
            lines.append(
                json.dumps(
                    {
                        "workflow_type_id": "w",
                        "workflow_id": f"r{i}",
                        "agent_id": role,
                        "time_s": i * 10 + j,
                        "duration_s": 0.5,
                        "output_tokens": tokens,
                        "final": j == 1,
                    }
                )
            )
    path.write_text("\n".join(lines))
    return path


def test_profile_build_and_show(tmp_path):
    file = tmp_path / "p.bin"
    assert "40 runs learned" in call("profile", "build", log(tmp_path / "log.jsonl"), "-o", file)
    assert "planner -> engineer" in call("profile", "show", file)
    (shown,) = json.loads(call("profile", "show", file, "--json", "--svg", tmp_path / "svg", "--alpha", "0.05"))
    assert shown["coverage"] == 1.0
    assert shown["roles"]["engineer"]["bound"] == 96
    assert (tmp_path / "svg" / "0.svg").read_text().startswith("<svg")
    assert "does not exist" in call("profile", "show", tmp_path / "none", status=1)
    (tmp_path / "bad").write_text("{}")
    assert "line 1" in call("profile", "build", tmp_path / "bad", "-o", file, status=1)


def test_simulate_prints_a_table():
    out = call(
        "simulate",
        "support",
        "coding=0.5",
        "--seconds",
        20,
        "--replicas",
        2,
        "--train",
        30,
        "--policy",
        "fcfs+least",
        "--policy",
        "pythia",
    )
    assert out.count("\n") == 4
    assert "is not one of" in call("simulate", "support", "--policy", "x", status=2)
    assert "number" in call("simulate", "support=x", status=1)


def test_before_and_after_stand_in_one_picture():
    views = [View(name, [Bar("r1", "lead", "a", 0.0, 1.0, 2.0)], [(1.0, 2.0, 0.5, 1.0)]) for name in ("before", "<b>")]
    page = render(views, "summary", [["policy", "mean"], ["fcfs", "2.0 s"]])
    assert page.count("<svg") == 6
    assert "&lt;b&gt;" in page


@pytest.mark.parametrize(
    ("text", "says"),
    [("models: {}", "length >= 1"), ("models: {m: {}}", "neither"), ("models: {m: {replicas: [{url: x}]}}", "http"), ("models: {m: {replicas: [{url: 'http://x', slot: 1}]}}", "slot"),
     ("models: {m: {replicas: [{url: 'http://x'}]}}\npolicy: {order: oracle}", "simulate"), ("- [", "configuration.md"), ("models: {m: {replicas: [{url: 'http://x'}]}}\nlisten: x", "listen")],
)  # fmt: skip
def test_a_bad_configuration_says_what_is_wrong(tmp_path, text, says):
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(BadConfig, match=says):
        read_settings(tmp_path / "c.yaml")


def test_a_bad_workflow_says_what_is_wrong(tmp_path):
    path = tmp_path / "w.yaml"
    for text, says in (
        ("name: x", "roles"),
        ("name: x\nroles: {a: {output: 3}}\nflow: [{role: b}]", "not \\['b'\\]"),
        ("name: x\nroles: {a: {output: 0}}\nflow: []", ">= 1"),
    ):
        path.write_text(text)
        with pytest.raises(BadFile, match=says):
            read_workflow(path)
    with pytest.raises(BadFile, match="cannot be read"):
        read_workflow("nothing")


def test_workflows_run_as_real_agents_and_their_log_is_replayed(tmp_path):
    async def go():
        async with (
            Stub(complete) as stub,
            gateway([stub], tmp_path, slots=16, log=str(tmp_path / "log.jsonl")) as (url, made),
        ):
            plans = arrivals([(read_workflow("support"), 0.5), (read_workflow("research"), 0.5)], 4.0, 2.0, 2)
            outcome = await drive(plans, url, "m")
            assert outcome.failed == 0
            assert len(outcome.jct_s) == len(plans)
            assert len(outcome.records) == sum(len(p.steps) for p in plans)
            assert [r.output_tokens for r in outcome.records] and all(r.output_tokens > 0 for r in outcome.records)
            await asyncio.sleep(0.2)
            assert made.profiles.finished == len(plans)
            bodies = [json.loads(e.body) for e in stub.seen]
            assert all("app_metadata" not in b for b in bodies)
        recorded = read_recording(tmp_path / "log.jsonl")
        assert sorted(len(p.steps) for p in recorded) == sorted(len(p.steps) for p in plans)
        async with Stub(complete) as stub:
            again = await drive(recorded[:3], stub.url, "m", key="k")
            assert again.failed == 0
            assert json.loads(stub.seen[0].body)["app_metadata"]["agent_id"] in ("triage", "lead")

    asyncio.run(asyncio.wait_for(go(), 90))


def test_tracelab_rounds_become_sessions(tmp_path):
    rows = [
        {"session_id": "a", "project": "p", "session_file": "f", "round_index": 1, "provider": "claude", "prefix_tokens": 100, "newly_append_tokens": 20, "output_tokens": 7, "tools": []},
        {"session_id": "a", "project": "p", "session_file": "f", "round_index": 0, "provider": "claude", "prefix_tokens": 0, "newly_append_tokens": 80, "output_tokens": 20,
         "tools": [{"tool_name": "x", "tool_wall_latency_ms": 500, "tool_internal_latency_ms": None}]},
        {"session_id": "a", "project": "q", "session_file": "f", "round_index": 0, "provider": "codex", "prefix_tokens": None, "newly_append_tokens": 5, "output_tokens": 1, "extra": {}},
    ]  # fmt: skip
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    one, other = read_recording(path)
    assert [(s.history, s.new, s.output, s.tool_s) for s in one.steps] == [(0, 80, 20, 0.5), (100, 20, 7, 0.0)]
    assert other.workflow_type == "codex"
    path.write_text('{"round_index": "x"}')
    with pytest.raises(BadFile, match="line 1"):
        read_recording(path)
    path.write_text("")
    with pytest.raises(BadFile, match="empty"):
        read_recording(path)


def test_an_unreachable_server_is_named():
    with pytest.raises(EngineError, match="pythia serve"):
        asyncio.run(drive([], "http://127.0.0.1:9", "m"))


def test_a_public_agent_framework_passes_the_identifiers(tmp_path):
    agents = pytest.importorskip("agents", reason="openai-agents is not installed")
    from openai import AsyncOpenAI

    async def go():
        async with Stub(complete) as stub, gateway([stub], tmp_path) as (url, made):
            client = AsyncOpenAI(base_url=f"{url}/v1", api_key="k")
            agents.set_tracing_disabled(True)
            metadata = {"workflow_type_id": "support", "workflow_id": "run-1", "agent_id": "triage"}
            agent = agents.Agent(
                name="triage", instructions="Sort the question.",
                model=agents.OpenAIChatCompletionsModel("m", client),
                model_settings=agents.ModelSettings(extra_body={"app_metadata": metadata}, max_tokens=5),
            )  # fmt: skip
            result = await agents.Runner.run(agent, "My printer is on fire")
            assert result.final_output.startswith("x")
            (run,) = made.profiles.open.values()
            assert (run.type_key[1], run.roles) == ("support", ["triage"])
            assert b"app_metadata" not in stub.seen[0].body
            await client.close()

    asyncio.run(asyncio.wait_for(go(), 60))
