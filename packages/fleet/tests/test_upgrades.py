"""Agent, collector and service of the release before work together with ours, in each mixture.

The release before is the commit that the changelog names ("## 1.2.0 (..., commit abcdef0)"), or `EROICA_PREVIOUS`.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from eroica.model.verdict import Verdict
from eroica.wire.messages import PROTOCOL
from support.emulated_jobs import EmulatedJob

from serving import Serving

ROOT = Path(__file__).parents[3]

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(600)]


def previous_release() -> str:
    """Its commit; "" where there is none."""
    named = re.findall(r"^## \d\S* \(.*commit ([0-9a-f]{7,40})\)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M)
    return os.environ.get("EROICA_PREVIOUS", "") or next(iter(named), "")


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where the release before is installed, from a wheel."""
    pytest.importorskip("hatchling")
    commit = previous_release()
    if not commit:
        pytest.skip("the changelog names no commit of an earlier release; EROICA_PREVIOUS=COMMIT does")
    place = tmp_path_factory.mktemp("previous")
    packed = place / "source.tar"
    told = subprocess.run(["git", "archive", "-o", packed, commit], cwd=ROOT, capture_output=True, check=False)
    if told.returncode:
        pytest.skip(f"commit {commit} is not in this checkout: {told.stderr.decode().strip()}")
    (place / "source").mkdir()
    subprocess.run(["tar", "-xf", packed, "-C", place / "source"], check=True)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(place), str(place / "source")]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = place.glob("*.whl")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(place / "installed")]
    subprocess.run([*install, "--disable-pip-version-check", str(wheel)], check=True, capture_output=True)
    return str(place / "installed")


AGENTS = """
import asyncio, random, sys
from pathlib import Path
try:
    import eroica.model.series
except ImportError:  # the release before keeps it elsewhere
    import eroica.summarize.series
    sys.modules["eroica.model.series"] = eroica.summarize.series
try:
    from eroica.agent.home import CollectorLink
except ImportError:
    import eroica.agent.home, eroica.agent.link
    eroica.agent.home.CollectorLink = eroica.agent.link.CollectorLink
from support.emulated_jobs import EmulatedJob
environ = dict(line.split("=", 1) for line in sys.stdin.read().split("\\0"))
job = EmulatedJob(Path(sys.argv[1]), "mixed", environ, 4.0, random.Random(1))
asyncio.run(job.live())
assert asyncio.run(job.handed_over(250))
assert job.spoken == {int(sys.argv[2])}, job.spoken
"""


SPOKEN = """
try:
    from eroica.wire.messages import PROTOCOL
except ImportError:  # as above
    from eroica.wire.version import PROTOCOL
print(PROTOCOL)
"""


def spoken_by(installed: str) -> int:
    """Version of the talk of agents and collector in another Eroica."""
    asked = [sys.executable, "-c", SPOKEN]
    environ = {**os.environ, "PYTHONPATH": installed}
    return int(subprocess.run(asked, env=environ, capture_output=True, check=True).stdout)


@pytest.mark.parametrize("older", ["agents", "collector", "service", "agents and collector", "collector and service"])
def test_one_release_apart_works(previous: str, tmp_path: Path, older: str) -> None:

    def path_for(side: str) -> dict[str, str]:
        return {"PYTHONPATH": previous if side in older else str(ROOT / "src")}

    service = Serving(tmp_path / "data", environ=path_for("service"))
    try:
        environ = {**service.environ(), **path_for("collector"), "EROICA_FLEET_REPORT_S": "1"}
        version = spoken_by(previous) if {"agents", "collector"} & set(older.split()) else PROTOCOL
        command = [sys.executable, "-c", AGENTS, str(tmp_path), str(version)]
        told = "\0".join(f"{name}={value}" for name, value in environ.items())
        done = subprocess.run(
            command, input=told, text=True, capture_output=True, timeout=400, check=False,
            env={**os.environ, **path_for("agents")},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        run = tmp_path / "runs" / "mixed"
        kept = {
            0: run / "verdict.json",
            **{int(one.parent.name): one for one in (run / "windows").glob("*/verdict.json")},
        }
        assert len(kept) == 2
        (found,) = service.ask("GET", "/v1/runs", job="mixed")["runs"]
        for window, file in kept.items():
            there = service.ask("GET", f"/v1/runs/{found['id']}/windows/{window}")
            verdict = Verdict.from_json(file.read_bytes())
            assert (there["summary"], there["verdict"]) == (verdict.summary, verdict.verdict)
            assert verdict.cause is not None and verdict.cause.cause == "slow-data-loading"
    finally:
        service.stop()


def test_a_database_of_the_release_before_is_brought_forward(previous: str, tmp_path: Path) -> None:
    older = Serving(tmp_path / "data", environ={"PYTHONPATH": previous})
    try:
        token = older.token("report", "read")
        job = EmulatedJob(tmp_path, "kept", {**older.environ(), "EROICA_FLEET_REPORT_S": "1"}, 4.0, random.Random(1))
        asyncio.run(job.live())
        assert asyncio.run(job.handed_over(250))
        before = older.ask("GET", "/v1/runs", token)["runs"]
    finally:
        older.stop()
    newer = Serving(tmp_path / "data", environ={"PYTHONPATH": str(ROOT / "src")})
    try:
        after = newer.ask("GET", "/v1/runs", token)["runs"]
        assert [run["summary"] for run in after] == [run["summary"] for run in before] and len(after) == 1
        assert newer.ask("GET", f"/v1/runs/{after[0]['id']}/windows/1", token)["verdict"] == "slow"
    finally:
        newer.stop()
