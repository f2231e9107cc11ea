"""Verdicts, windows and iterations to an OpenTelemetry endpoint, with the SDK of the extra `[otel]`.

    log record   `eroica.verdict` for each verdict, with its cause, workers, gain, and the trace of its window.
    span         `megatron.train`, and inside it one for each window, from its first captured iteration to its last.
    metric       `megatron.training.step_duration_ms` (histogram, ms), `iteration-time` (s), `eroica.iteration.best`,
                 `eroica.iterations`, `eroica.windows`, `eroica.verdict.gain`, `eroica.verdict.confidence`

Nothing here is worked out: it is the status and the verdict, as in `docs/metrics.md`. Sending is the SDK's, in threads
of its own; the collector only puts into queues. Variables that the SDK reads from its environment count, such as
`OTEL_EXPORTER_OTLP_HEADERS` and `OTEL_EXPORTER_OTLP_CERTIFICATE`. OTLP is spoken over HTTP with protobuf, or over gRPC
where `OTEL_EXPORTER_OTLP_PROTOCOL` says `grpc`.

Source: Megatron-LM at ab1a284. `megatron/core/telemetry/training_metrics.py` has `megatron.training.step_duration_ms`,
its name, kind and unit; `docs/user-guide/observability/span-groups.md` has `megatron.train`, one span for each job;
`training_log` in `megatron/training/training.py` writes `iteration-time` to TensorBoard and W&B. Its other names are of
losses, gradients, throughput, and of parts of single steps, none of which the collector knows.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, LogRecordExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import set_span_in_context

from eroica import __version__
from eroica.model.history import IterationHistory
from eroica.model.verdict import Verdict
from eroica.model.words import clean, sentence
from eroica.wire.messages import JobStatus

#: Seconds between two looks at the status, and between two exports of metrics.
PERIOD_S = 15.0
_TIMEOUT_S = 5.0
_MOST_WORKERS = 64
_SEVERITIES = {
    "healthy": SeverityNumber.INFO,
    "undetermined": SeverityNumber.INFO,
    "slow": SeverityNumber.WARN,
    "blocked": SeverityNumber.ERROR,
}
_SPANS = ("window", "baseline", "blocked")


class Telemetry:
    """Tells one endpoint of one job; looks at its status now and then, until `close`.

    Args:
        job: Name of the job.
        host: Name of this host.
        endpoint: Base address: http://collector:4318, to which the signals' paths are added; or with gRPC
            http://collector:4317.
        status: The job right now.
        history: Its iteration times and marks.
        period_s: Seconds between two exports of metrics.

    Raises:
        ValueError: `OTEL_EXPORTER_OTLP_PROTOCOL` names a protocol that is not spoken.
        ImportError: The exporter for that protocol is not installed.
    """

    def __init__(
        self,
        job: str,
        host: str,
        endpoint: str,
        status: Callable[[], JobStatus],
        history: Callable[[], IterationHistory],
        period_s: float = PERIOD_S,
    ) -> None:
        to_logs, to_traces, to_metrics = _exporters(endpoint.rstrip("/"))
        about = Resource.create(
            {"service.name": "eroica", "service.version": __version__, "host.name": host, "eroica.job": job}
        )
        self._status, self._history, self._period_s = status, history, period_s
        self._seen = status()
        self._timed = 0
        self._verdict: Verdict | None = None
        self._logs = LoggerProvider(resource=about, shutdown_on_exit=False)
        self._logs.add_log_record_processor(BatchLogRecordProcessor(to_logs))
        self._traces = TracerProvider(resource=about, shutdown_on_exit=False)
        self._traces.add_span_processor(BatchSpanProcessor(to_traces))
        reader = PeriodicExportingMetricReader(to_metrics, export_interval_millis=1000 * period_s)
        self._metrics = MeterProvider([reader], resource=about, shutdown_on_exit=False)
        self._instruments()
        self._tracer = self._traces.get_tracer("eroica", __version__)
        self._logger = self._logs.get_logger("eroica", __version__)
        self._training = self._tracer.start_span("megatron.train", start_time=_ns(history().began))
        self._spans: dict[tuple[str, int], Any] = {}
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while True:
            self._look()
            await asyncio.sleep(min(self._period_s, 5.0))

    def _look(self) -> None:
        """Take the status as it is now; its mean counts once for each look that finds another iteration.

        Workers that were started again count their iterations from 0.
        """
        self._seen = self._status()
        if self._seen.mean_ms is not None and self._seen.iteration != self._timed:
            self._timed = self._seen.iteration
            self._durations.record(self._seen.mean_ms)

    def judged(self, window_id: int, verdict: Verdict) -> None:
        """A verdict stands; 0 is the job's final one. Never waits."""
        self._verdict = verdict
        self._look()
        self._draw_spans()
        of = self._spans.get(("blocked", window_id)) or self._spans.get(("window", window_id)) or self._training
        self._logger.emit(
            LogRecord(
                timestamp=time.time_ns(),
                context=set_span_in_context(of),
                severity_number=_SEVERITIES[verdict.verdict],
                severity_text=_SEVERITIES[verdict.verdict].name,
                body=sentence(verdict.summary),
                attributes=_facts(window_id, verdict),
                event_name="eroica.verdict",
            )
        )

    async def close(self, patience_s: float) -> None:
        """Send what waits, for so long at most; the rest is given up."""
        self._task.cancel()
        self._look()
        self._draw_spans()
        self._training.end()
        sending = threading.Thread(target=self._shut_down, args=(patience_s,), name="telemetry", daemon=True)
        sending.start()
        end = time.monotonic() + patience_s
        while sending.is_alive() and time.monotonic() < end:
            await asyncio.sleep(0.02)

    def _shut_down(self, patience_s: float) -> None:
        for provider in (self._logs, self._traces, self._metrics):
            provider.force_flush(int(1000 * patience_s))
        for provider in (self._logs, self._traces, self._metrics):
            provider.shutdown()

    # ------------------------------------------------------------------ spans and metrics

    def _draw_spans(self) -> None:
        """Windows that have ended since the last time."""
        history = self._history()
        inside = set_span_in_context(self._training)
        for mark in history.marks:
            key = mark.kind, mark.window_id
            if mark.kind not in _SPANS or mark.until_s is None or key in self._spans:
                continue
            span = self._tracer.start_span(mark.kind, inside, start_time=_ns(history.began + mark.at_s))
            span.set_attribute("eroica.window_id", mark.window_id)
            span.set_attribute("eroica.first_iteration", mark.iteration)
            span.set_attribute("eroica.reason", sentence(mark.text))
            if mark.last_iteration is not None:
                span.set_attribute("eroica.last_iteration", mark.last_iteration)
            span.end(_ns(history.began + mark.until_s))
            self._spans[key] = span

    def _instruments(self) -> None:
        meter = self._metrics.get_meter("eroica", __version__)
        gain, confidence = lambda: self._of_cause("gain"), lambda: self._of_cause("confidence")
        gauges: tuple[tuple[str, str, str, Callable[[], float | None]], ...] = (
            ("iteration-time", "s", "Mean of the recent iterations.", lambda: _seconds(self._seen.mean_ms)),
            ("eroica.iteration.best", "s", "Best such mean so far.", lambda: _seconds(self._seen.best_ms)),
            ("eroica.verdict.gain", "1", "Share of an iteration that mending the cause saves.", gain),
            ("eroica.verdict.confidence", "1", "How sure the newest verdict is of its cause.", confidence),
        )
        for name, unit, about, value in gauges:
            meter.create_observable_gauge(name, [_observing(value)], unit, about)
        self._durations = meter.create_histogram(
            "megatron.training.step_duration_ms", "ms", "Means of the recent iterations, one for each look."
        )
        counted = [_observing(lambda: self._seen.iteration)]
        meter.create_observable_counter("eroica.iterations", counted, "{iteration}", "Completed iterations.")
        meter.create_observable_counter("eroica.windows", [self._windows], "{window}", "Windows opened.")

    def _of_cause(self, name: str) -> float | None:
        cause = self._verdict.cause if self._verdict is not None else None
        return None if cause is None else getattr(cause, name)

    def _windows(self, _options: CallbackOptions) -> Iterable[Observation]:
        opened = Counter(window.purpose for window in self._seen.windows)
        return [Observation(count, {"eroica.purpose": purpose}) for purpose, count in opened.items()]


def _exporters(base: str) -> tuple[LogRecordExporter, SpanExporter, MetricExporter]:
    """Make what sends, for the protocol that `OTEL_EXPORTER_OTLP_PROTOCOL` names; without it, HTTP with protobuf.

    Args:
        base: Address without the signals' paths.

    Raises:
        ValueError: It names another one.
        ImportError: The exporter is not installed.
    """
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "").strip().lower() or "http/protobuf"
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc import _log_exporter, metric_exporter, trace_exporter

        paths = (base, base, base)
    elif protocol == "http/protobuf":
        from opentelemetry.exporter.otlp.proto.http import _log_exporter, metric_exporter, trace_exporter

        paths = (f"{base}/v1/logs", f"{base}/v1/traces", f"{base}/v1/metrics")
    else:
        raise ValueError(f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol!r}; http/protobuf and grpc are spoken")
    return (
        _log_exporter.OTLPLogExporter(paths[0], timeout=_TIMEOUT_S),
        trace_exporter.OTLPSpanExporter(paths[1], timeout=_TIMEOUT_S),
        metric_exporter.OTLPMetricExporter(paths[2], timeout=_TIMEOUT_S),
    )


def _observing(value: Callable[[], float | None]) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observe(_options: CallbackOptions) -> Iterable[Observation]:
        found = value()
        return () if found is None else (Observation(found),)

    return observe


def _facts(window_id: int, verdict: Verdict) -> dict[str, Any]:
    facts: dict[str, Any] = {"eroica.verdict": verdict.verdict, "eroica.final": window_id == 0}
    if window_id:
        facts["eroica.window_id"] = window_id
    cause = verdict.cause
    if cause is not None:
        facts |= {
            "eroica.cause": clean(cause.cause, 60),
            "eroica.function": clean(cause.function.name),
            "eroica.workers": list(cause.workers[:_MOST_WORKERS]),
            "eroica.scope": cause.scope,
            "eroica.confidence": cause.confidence,
            "eroica.next_step": sentence(cause.next_step),
        }
        facts |= {} if cause.gain is None else {"eroica.gain": cause.gain}
    return facts


def _seconds(value_ms: float | None) -> float | None:
    return None if value_ms is None else value_ms / 1000


def _ns(seconds: float) -> int:
    return int(1e9 * seconds)
