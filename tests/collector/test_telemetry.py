"""OpenTelemetry, as real OTLP receivers on loopback hear it: one over HTTP, one over gRPC."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from email.message import Message
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="OpenTelemetry is an extra: pip install -e '.[dev]'")

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from eroica.collector.telemetry import Telemetry
from eroica.model.history import IterationHistory, Mark
from eroica.wire.address import read_address
from eroica.wire.messages import JobStatus, WindowLine
from support.servers import serving
from support.verdicts import cause, plain

KINDS = {
    "/v1/logs": ExportLogsServiceRequest,
    "/v1/metrics": ExportMetricsServiceRequest,
    "/v1/traces": ExportTraceServiceRequest,
}
SERVICES = {
    "/v1/logs": "logs.v1.LogsService",
    "/v1/metrics": "metrics.v1.MetricsService",
    "/v1/traces": "trace.v1.TraceService",
}
HISTORY = IterationHistory(
    job="train",
    began=1_700_000_000.0,
    marks=(
        Mark(kind="baseline", at_s=5.0, until_s=7.0, iteration=40, last_iteration=60, window_id=1),
        Mark(kind="trigger", at_s=20.0, iteration=200),
        Mark(kind="window", at_s=21.0, until_s=24.0, iteration=212, last_iteration=240, window_id=2, text="slower"),
        Mark(kind="window", at_s=50.0, iteration=400, window_id=3),
    ),
)
STATUS = JobStatus(
    job="train",
    phase="watching",
    message="",
    iteration=412,
    mean_ms=24.4,
    best_ms=18.2,
    windows=(
        WindowLine(window_id=1, purpose="baseline", phase="done"),
        WindowLine(window_id=2, purpose="slow", phase="done", verdict="slow"),
    ),
)
CAUSE = cause("slow-data-loading", 2, function="load\x1b[31m", gain=0.38, confidence=0.97, next_step="Read ahead.")
VERDICT = plain("slow", "Worker 2 loads.", CAUSE, job="train")


class Heard:
    """What exporters sent, decoded."""

    def __init__(self) -> None:
        self.url = ""
        self.heard: dict[str, list[Any]] = {path: [] for path in KINDS}

    def records(self) -> list[Any]:
        scopes = [
            scope for one in self.heard["/v1/logs"] for resource in one.resource_logs for scope in resource.scope_logs
        ]
        return [record for scope in scopes for record in scope.log_records]

    def spans(self) -> dict[str, Any]:
        scopes = [
            s for one in self.heard["/v1/traces"] for resource in one.resource_spans for s in resource.scope_spans
        ]
        return {span.name: span for scope in scopes for span in scope.spans}

    def points(self) -> dict[str, Any]:
        """Name -> data points of a metric, the latest export's."""
        scopes = [
            s for one in self.heard["/v1/metrics"] for resource in one.resource_metrics for s in resource.scope_metrics
        ]
        metrics = [metric for scope in scopes for metric in scope.metrics]
        return {metric.name: getattr(metric, metric.WhichOneof("data")).data_points for metric in metrics}


@contextmanager
def receiving(protocol: str = "http/protobuf") -> Iterator[Heard]:
    """What a receiver of this protocol hears."""
    heard = Heard()
    if protocol == "grpc":
        server = grpc_server(heard)
        yield heard
        server.stop(None).wait()
        return

    def answer(path: str, headers: Message, body: bytes) -> tuple[int, dict[str, str], bytes]:
        data = gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body
        heard.heard[path].append(KINDS[path].FromString(data))
        return 200, {}, b""

    with serving(answer) as heard.url:
        yield heard


def grpc_server(heard: Heard) -> Any:
    """A server of OTLP's three services, started."""
    grpc = pytest.importorskip("grpc", reason="gRPC is an extra: pip install -e '.[dev]'")
    pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc", reason="an extra: pip install -e '.[dev]'")
    server = grpc.server(ThreadPoolExecutor(3))
    for path, service in SERVICES.items():
        export = grpc.unary_unary_rpc_method_handler(
            lambda request, _, path=path: heard.heard[path].append(request),
            request_deserializer=KINDS[path].FromString,
            response_serializer=lambda _: b"",  # a response without fields
        )
        name = f"opentelemetry.proto.collector.{service}"
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, {"Export": export}),))
    heard.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    return server


def values(attributes: Any) -> dict[str, Any]:
    """Attributes as plain values."""
    found: dict[str, Any] = {}
    for one in attributes:
        kind = one.value.WhichOneof("value")
        value = getattr(one.value, kind)
        found[one.key] = [item.int_value for item in value.values] if kind == "array_value" else value
    return found


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_a_verdict_is_a_log_record_in_the_span_of_its_window(monkeypatch: pytest.MonkeyPatch, protocol: str) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    with receiving(protocol) as server:

        async def go() -> None:
            telemetry = Telemetry("train", "node-1", server.url, lambda: STATUS, lambda: HISTORY, 60.0)
            telemetry.judged(2, VERDICT)
            await telemetry.close(10)

        asyncio.run(go())
    (record,), spans, points = server.records(), server.spans(), server.points()
    assert record.body.string_value == "Worker 2 loads." and record.severity_text == "WARN"
    assert record.event_name == "eroica.verdict"
    facts = values(record.attributes)
    assert facts["eroica.cause"] == "slow-data-loading" and facts["eroica.workers"] == [2]
    assert facts["eroica.gain"] == 0.38 and facts["eroica.window_id"] == 2 and facts["eroica.final"] is False
    assert facts["eroica.function"].isprintable()
    assert set(spans) == {"megatron.train", "baseline", "window"}  # the third window has not ended
    window, training = spans["window"], spans["megatron.train"]
    assert record.span_id == window.span_id and window.parent_span_id == training.span_id
    assert (window.start_time_unix_nano, window.end_time_unix_nano) == (1_700_000_021 * 10**9, 1_700_000_024 * 10**9)
    assert values(window.attributes)["eroica.first_iteration"] == 212
    assert [point.as_double for point in points["iteration-time"]] == [pytest.approx(0.0244)]
    (steps,) = points["megatron.training.step_duration_ms"]
    assert (steps.count, steps.sum) == (1, 24.4)  # its iterations count once, however often it is looked at
    assert [point.as_int for point in points["eroica.iterations"]] == [412]
    assert {values(point.attributes)["eroica.purpose"]: point.as_int for point in points["eroica.windows"]} == {
        "baseline": 1,
        "slow": 1,
    }
    assert points["eroica.verdict.gain"][0].as_double == 0.38


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_a_collector_tells_its_final_verdict_and_ends_in_time_even_if_nobody_listens(
    tmp_path: Path, protocol: str
) -> None:
    variables = {"OTEL_EXPORTER_OTLP_PROTOCOL": protocol}
    with receiving(protocol) as server:
        took_s, status = run_collector(tmp_path / "heard", server.url, variables)
    assert status == 0 and took_s < 10
    assert [values(record.attributes)["eroica.final"] for record in server.records()] == [True]
    took_s, status = run_collector(tmp_path / "unheard", "http://127.0.0.1:9", variables)
    assert status == 0 and took_s < 10


@pytest.mark.parametrize(
    ("protocol", "complaint"),
    [
        ("http/json", "OTEL_EXPORTER_OTLP_PROTOCOL is 'http/json'; http/protobuf and grpc are spoken"),
        ("grpc", "pip install 'eroica[otel-grpc]'"),
    ],
)
def test_a_protocol_that_cannot_be_spoken_is_said_and_the_job_watched(
    tmp_path: Path, protocol: str, complaint: str
) -> None:
    hidden = tmp_path / "hidden" / "sitecustomize.py"  # an environment without the exporter for gRPC
    hidden.parent.mkdir()
    hidden.write_text("import sys\nsys.modules['opentelemetry.exporter.otlp.proto.grpc'] = None\n")
    variables = {"OTEL_EXPORTER_OTLP_PROTOCOL": protocol, "PYTHONPATH": str(hidden.parent)}
    _, status = run_collector(tmp_path / "job", "http://127.0.0.1:9", variables)
    assert status == 0
    notes = json.loads((tmp_path / "job" / "status.json").read_bytes())["notes"]
    assert any(complaint in note for note in notes), notes


def run_collector(run: Path, endpoint: str, variables: Mapping[str, str] | None = None) -> tuple[float, int]:
    """Start a collector of a job without agents, tell it that the job is over; seconds from then to its end."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("EROICA_")},
        "EROICA_JOB": run.name,
        "EROICA_RUN_DIR": str(run),
        "EROICA_RUNTIME_DIR": str(run.parent),
        "EROICA_OTLP_ENDPOINT": endpoint,
        "EROICA_PAGES": "false",
        **(variables or {}),
    }
    process = subprocess.Popen([sys.executable, "-m", "eroica.collector"], env=environment)
    end = time.monotonic() + 30
    while (address := read_address(run)) is None and time.monotonic() < end:
        time.sleep(0.05)
    assert address is not None
    began = time.monotonic()
    import httpx

    httpx.post(f"{address.url}/v1/finish", headers={"Authorization": f"Bearer {address.token}"}, trust_env=False)
    status = process.wait(timeout=30)
    return time.monotonic() - began, status
