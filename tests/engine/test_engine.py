"""Steps run here or on Ray, with the same bits; whoever dies there costs time only."""

from __future__ import annotations

import os
import secrets
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE, Popen

import msgspec
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from eroica.archive.load import open_window  # noqa: E402
from eroica.engine import (  # noqa: E402
    ONE_PROCESS_WORKERS,
    Engine,
    OnRay,
    choose_engine,
    is_installed,
    run_step,
)
from eroica.errors import InputError, UnavailableError, UsageError  # noqa: E402
from eroica.localize.fleet import leave_out_damaged  # noqa: E402
from eroica.model.pattern import WorkerPattern  # noqa: E402
from eroica.model.verdict import Cost, Verdict  # noqa: E402
from eroica.offline.saved import examine_again, usable_patterns  # noqa: E402
from eroica.pipeline import analyze  # noqa: E402
from eroica.settings import (  # noqa: E402
    Settings,
    check_engine,
    load_settings,
)
from eroica.wire.codec import decode_record  # noqa: E402
from scale import Job  # noqa: E402
from support import FleetPlan, SlowCompute, SlowLoader, SlowPython, synthesize, synthesize_window  # noqa: E402
from support.run_directories import save_patterns  # noqa: E402

needs_ray = pytest.mark.skipif(not is_installed(), reason="ray is not installed; pip install 'eroica[ray]'")
ON_RAY = Settings(engine="ray")
TROUBLES = [SlowLoader((2,), 40, "_read_block (project/dataset.py:70)"), SlowCompute((1,), 30), SlowPython(30)]


def without_cost(verdict: Verdict) -> bytes:
    return msgspec.structs.replace(verdict, cost=Cost()).to_json()


def of_a_large_job(workers: int) -> list[WorkerPattern]:
    """With tensor parallel groups and pipelines, so that many groups are alike; one worker is slow."""
    return [decode_record(data, WorkerPattern) for data in Job(workers).wire()]


def double(part: int) -> int:
    return 2 * part


def refuse(part: int) -> int:
    raise InputError(f"part {part} is none")


def die_once(part: tuple[str, int]) -> int:
    mark = Path(part[0]) / str(part[1])
    if part[1] % 3 == 0 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return part[1]


#: Ray starts its processes by forking: from a process of its own, in which no other test has left a thread that
#: talks gRPC. Such a thread can hold a lock at the fork, and the new process then never gets to its program.
HEAD = """
import sys
import ray

ray.init("local", num_cpus=2, object_store_memory=200_000_000, include_dashboard=False, log_to_driver=False)
print(ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module", autouse=True)
def surroundings() -> Iterator[None]:
    """Ray reads its variables once in a process; its workers find this file's steps by the path."""
    found = {
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in found.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Ray on this host, with two workers and little memory."""
    import ray

    with Popen([sys.executable, "-c", HEAD], stdin=PIPE, stdout=PIPE, text=True) as head:
        assert head.stdin and head.stdout
        address = head.stdout.readline().strip()
        assert address, "Ray did not start"
        ray.init(address, log_to_driver=False)
        yield
        ray.shutdown()
        head.stdin.close()


@pytest.mark.parametrize("text", ["", "spark", "ray://", "Ray", "http://x"])
def test_an_engine_that_is_none_is_refused_with_what_there_is(text: str) -> None:
    with pytest.raises(UsageError, match="auto, local, ray or ray://"):
        check_engine(text)
    with pytest.raises(UsageError, match="auto, local, ray or ray://"):
        load_settings({"engine": text}, {})


def test_one_process_is_the_default_as_far_as_it_carries() -> None:
    assert choose_engine("auto", ONE_PROCESS_WORKERS).name == "local"
    assert "100,032" in choose_engine("auto", 4).why
    assert choose_engine("local", 10**6).why == "asked for"
    beyond = choose_engine("auto", ONE_PROCESS_WORKERS + 1)
    assert (beyond.name == "ray") == is_installed() and "more than 100,032 workers" in beyond.why


def test_without_ray_the_verdict_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eroica.engine.is_installed", lambda: False)
    patterns = synthesize(FleetPlan(seed=3), TROUBLES[:1], 2)
    verdict = analyze("job", synthesize_window(patterns), patterns, settings=ON_RAY)
    assert (verdict.cost.engine, verdict.cost.engine_why) == ("local", "ray is not installed")
    assert verdict.cause is not None


def test_steps_here_come_one_by_one_and_in_order() -> None:
    taken: list[int] = []
    parts = (taken.append(part) or part for part in range(5))  # type: ignore[func-returns-value]
    results = Engine("").map(double, parts)
    assert next(results) == 0 and taken == [0]
    assert list(results) == [2, 4, 6, 8]


def test_workers_of_another_version_are_told_from_ours() -> None:
    with pytest.raises(UnavailableError, match="install the same"):
        run_step("0.0.0", double, 1)


@needs_ray
def test_a_cluster_that_is_not_there_costs_no_verdict() -> None:
    engine = OnRay("ray://127.0.0.1:1", "asked for")
    assert list(engine.map(double, range(5))) == [0, 2, 4, 6, 8]
    assert engine.name == "local" and engine.why.startswith("ray failed (")


@needs_ray
def test_results_come_in_order_and_what_a_step_raises_is_raised(cluster: None) -> None:
    engine = OnRay("", "asked for")
    assert list(engine.map(double, range(50))) == [2 * part for part in range(50)]
    with pytest.raises(InputError, match="part 7 is none"):
        list(engine.map(refuse, [7]))
    assert engine.name == "ray"


@needs_ray
def test_a_worker_that_is_killed_costs_its_part_time_only(cluster: None, tmp_path: Path) -> None:
    engine = OnRay("", "asked for")
    assert list(engine.map(die_once, [(str(tmp_path), part) for part in range(9)])) == list(range(9))
    assert len(list(tmp_path.iterdir())) == 3 and engine.name == "ray"


@needs_ray
@pytest.mark.parametrize("trouble", range(len(TROUBLES)))
@pytest.mark.parametrize("workers, stages", [(4, 1), (8, 2), (64, 4)])
def test_verdicts_are_those_of_one_process_to_the_last_byte(
    cluster: None, trouble: int, workers: int, stages: int
) -> None:
    plan = FleetPlan(seed=trouble, workers=workers, stages=stages, accelerator=workers > 8)
    before, now = synthesize(plan), synthesize(plan, TROUBLES[trouble : trouble + 1], 2)
    window = synthesize_window(now, "slow", before)
    here, there = (analyze("job", window, now, before, settings=one) for one in (Settings(engine="local"), ON_RAY))
    assert there.cost.engine == "ray" and here.cost.engine == "local"
    assert without_cost(there) == without_cost(here) and here.cause is not None


@needs_ray
def test_groups_that_are_alike_are_judged_alike(cluster: None) -> None:
    patterns = of_a_large_job(512)
    window = synthesize_window(patterns)
    here, there = (analyze("job", window, patterns, settings=one) for one in (Settings(engine="local"), ON_RAY))
    assert without_cost(there) == without_cost(here) and there.cost.engine == "ray"
    assert here.cause is not None and here.cause.workers == (Job(512).slow,)


@needs_ray
def test_windows_on_disk_are_read_alike_damage_included(cluster: None, tmp_path: Path) -> None:
    patterns = synthesize(FleetPlan(seed=1, workers=8), TROUBLES[:1], 2)
    patterns[3] = msgspec.structs.replace(patterns[3], wait_us=b"x")
    directory = tmp_path / "windows" / str(patterns[0].window_id)
    save_patterns(directory, synthesize_window(patterns), patterns)
    (directory / "patterns" / "5.pattern").write_bytes(b"nothing")
    saved = open_window(directory)
    here, there = usable_patterns(saved), usable_patterns(saved, OnRay("", "asked for"))
    assert here == there and len(here[1]) == 6
    verdicts = [examine_again(None, saved, one).verdict for one in (Settings(engine="local"), ON_RAY)]
    assert without_cost(verdicts[0]) == without_cost(verdicts[1])
    assert leave_out_damaged(patterns) == leave_out_damaged(patterns, OnRay("", "asked for"))
