"""A Kubeflow TrainJob's status, posted to a real HTTPS server whose authority only the job knows."""

from __future__ import annotations

import asyncio
import json
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from eroica.collector.trainjob import CA_FILE, TOKEN_FILE, URL, TrainJob, trainer_status
from eroica.model.verdict import FindingFunction, Verdict
from eroica.wire.messages import JobStatus
from support.collectors import until
from support.servers import serving
from support.verdicts import cause, plain

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate with")

#: Kubeflow Trainer, pkg/apis/trainer/v1alpha1/trainjob_types.go: of a metric's name, and of its value.
LONGEST = 64
PATH = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/team/trainjobs/llama/status"
STATUS = JobStatus(job="llama", phase="watching", message="", iteration=412, mean_ms=24.4, best_ms=18.2)
CAUSE = cause("slow-data-loading", 2, function="load\n", gain=0.38, confidence=0.97)
VERDICT = plain("slow", "Worker 2 loads.", CAUSE, job="llama")


class Controller:
    """What Kubeflow's controller does with a status, as far as a pod can see."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str, dict[str, Any]]] = []
        self.status, self.url = 200, ""

    def answer(self, path: str, headers: Message, body: bytes) -> tuple[int, dict[str, str], bytes]:
        posted = json.loads(body)
        self.heard.append((path, headers["authorization"], posted))
        return self.status if within_limits(posted) else 422, {}, b""


def within_limits(body: dict[str, Any]) -> bool:
    """Whether the API server takes it."""
    status = body["trainerStatus"]
    texts = [text for metric in status["metrics"] for text in (metric["name"], metric["value"])]
    return bool(status["lastUpdatedTime"]) and len(texts) <= 2 * 256 and all(0 < len(text) <= LONGEST for text in texts)


def make_certificate(directory: Path) -> None:
    """One that signs itself, for 127.0.0.1."""
    directory.mkdir()
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=controller", "-addext", "subjectAltName=IP:127.0.0.1",
         "-keyout", directory / "key", "-out", directory / "ca.crt"],
        check=True, capture_output=True,
    )  # fmt: skip


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    make_certificate(tmp_path / "tls")
    trust = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trust.load_cert_chain(tmp_path / "tls" / "ca.crt", tmp_path / "tls" / "key")
    told = Controller()
    with serving(told.answer, trust) as url:
        told.url = f"{url}{PATH}"
        yield told


def variables(directory: Path, url: str) -> dict[str, str]:
    """What the controller puts into each container."""
    (directory / "token").write_text("first.token\n")
    return {URL: url, CA_FILE: str(directory / "ca.crt"), TOKEN_FILE: str(directory / "token")}


def names(body: dict[str, Any]) -> dict[str, str]:
    return {metric["name"]: metric["value"] for metric in body["trainerStatus"]["metrics"]}


def test_iteration_times_and_the_verdict_stand_in_the_trainjob(tmp_path: Path, controller: Controller) -> None:
    notes: list[str] = []

    async def go() -> None:
        job = TrainJob(variables(tmp_path / "tls", controller.url), lambda: STATUS, notes.append, 0.05)
        await until(lambda: len(controller.heard) >= 1)
        (tmp_path / "tls" / "token").write_text("second.token\n")  # Kubernetes renews it
        job.judged(2, VERDICT)
        await until(lambda: "eroica_verdict" in names(controller.heard[-1][2]))
        await job.close(5)

    asyncio.run(go())
    path, token, first = controller.heard[0]
    assert path == PATH and token == "Bearer first.token"
    assert names(first) == {
        "eroica_iterations": "412",
        "eroica_iteration_mean_seconds": "0.0244",
        "eroica_iteration_best_seconds": "0.0182",
    }
    _, token, last = controller.heard[-1]
    assert token == "Bearer second.token"
    assert names(last)["eroica_verdict"] == "slow" and names(last)["eroica_function"] == "load"
    assert names(last)["eroica_workers"] == "worker 2" and names(last)["eroica_gain_ratio"] == "0.38"
    assert notes == []


def test_another_authority_is_not_believed(tmp_path: Path, controller: Controller) -> None:
    make_certificate(tmp_path / "other")
    assert said(variables(tmp_path / "other", controller.url)) == [
        "the TrainJob's status could not be posted: no connection (ConnectError)"
    ]
    assert controller.heard == []


def test_what_goes_wrong_is_a_note_and_costs_nothing(tmp_path: Path, controller: Controller) -> None:
    controller.status = 403
    given = variables(tmp_path / "tls", controller.url)
    assert said(given) == ["the TrainJob's status could not be posted: it answers 403"]
    (tmp_path / "tls" / "token").unlink()
    assert "certificate or token cannot be read" in said(given)[0]
    assert "is not set to an https address" in said({})[0]
    assert "is not set to an https address" in said({URL: "http://127.0.0.1/"})[0]


def said(environ: dict[str, str], verdict: Verdict | None = None) -> list[str]:
    """Notes of a job that ends at once."""
    notes: list[str] = []

    async def go() -> None:
        job = TrainJob(environ, lambda: STATUS, notes.append)
        if verdict is not None:
            job.judged(2, verdict)
        await job.close(5)

    asyncio.run(go())
    return notes


LONG = replace(
    VERDICT,
    summary="Worker 2 spends 62 ms of each 133 ms iteration in TokenWindows._read_block (tokens.py:39) loading data; "
    f"the others wait for it. {'x' * 200}",
    findings=(
        replace(CAUSE, function=FindingFunction(name="f" * 300, kind="python"), workers=tuple(range(0, 9000, 500))),
    ),
)


def test_a_verdict_of_many_words_is_taken_in_pieces(tmp_path: Path, controller: Controller) -> None:
    assert said(variables(tmp_path / "tls", controller.url), LONG) == []
    told = names(controller.heard[-1][2])
    pieces = [value for name, value in told.items() if name.startswith("eroica_summary")]
    assert "".join(pieces).replace(" ", "") == LONG.summary.replace(" ", "")
    assert list(told)[4:6] == ["eroica_summary", "eroica_summary_2"]


@pytest.mark.parametrize("verdict", [None, VERDICT, LONG])
def test_a_post_has_the_fields_of_the_published_model(verdict: Verdict | None) -> None:
    """Fields that the model does not know would be lost on the way through it."""
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="pip install -e '.[dev]'")
    body = {"trainerStatus": trainer_status(STATUS, verdict)}
    read = models.TrainerV1alpha1UpdateTrainJobStatusRequest.from_dict(body)
    assert read.model_dump(mode="json", by_alias=True, exclude_none=True) == body
    wrong = {"trainerStatus": {**body["trainerStatus"], "lastUpdateTime": "2026-01-01T00:00:00Z"}}
    read = models.TrainerV1alpha1UpdateTrainJobStatusRequest.from_dict(wrong)
    assert read.model_dump(mode="json", by_alias=True, exclude_none=True) != wrong
