"""A running job as Prometheus metrics: what status and verdict say, with bounded labels whatever the job does.

Every series of the job carries `run`, the job's name. No label holds anything else of the job's making but the cause's
function, its hosts and hosts whose agents are silent, and these are short and few. `docs/metrics.md` lists all series.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from eroica import __version__
from eroica.model.verdict import Verdict, VerdictWord, Waits
from eroica.model.window import WindowPurpose
from eroica.model.words import clean, worker_list
from eroica.wire.messages import JobStatus

#: Workers with a series of their own, by blame; the others are one sum.
MOST_BLAMED = 16
#: Hosts with a series of their own: all of a small job, else only those whose agents are overdue.
MOST_HOSTS = 16
#: Longest value of a label: a wide panel shows about so much of a line.
LONGEST_LABEL = 120
#: What `JobStatus.phase` can be; "other" stands for what this list has forgotten.
PHASES = (
    "waiting", "learning", "watching", "probe", "window", "patterns", "analysis", "looking", "silent", "blocked",
    "undetermined", "ended", "other",
)  # fmt: skip
_OUTCOMES = ("sent", "failed", "withheld")
#: Counters of what windows cost: name, field of `Cost`, unit and meaning.
_COSTS = (
    ("eroica_window_stall", "window_stall_s", "seconds", "Stall by windows, each of the worker that it held up most."),
    ("eroica_summarize", "summarize_s", "seconds", "Summarizing windows, each on the worker that took longest."),
    ("eroica_raw", "raw_bytes", "bytes", "What all workers recorded in windows."),
    ("eroica_pattern", "pattern_bytes", "bytes", "What of it was sent to the collector."),
)
Series = Mapping[Any, float]  # by a tuple of labels


@dataclass(frozen=True, kw_only=True)
class Scrape:
    """What is known of a job when Prometheus asks.

    Attributes:
        status: The job.
        workers_expected: Its world size, 0 if never learned.
        report_ages_s: Host on which a worker lives -> seconds since its agent's last report.
        overdue_s: An agent that was not heard for longer is not alive.
        verdict: The job's final one, else that of the newest window that still holds; None before there is one.
        verdict_at: When it stood, seconds since 1970; None if unknown.
        verdicts: Of all windows, for what looking has cost so far.
        more: Of parts of other packages.
        messages: How often the webhook was "sent" something, "failed", or something was "withheld"; empty without one.
    """

    status: JobStatus
    workers_expected: int = 0
    report_ages_s: Mapping[str, float] = field(default_factory=dict)
    overdue_s: float = 10.0
    verdict: Verdict | None = None
    verdict_at: float | None = None
    verdicts: Sequence[Verdict] = ()
    messages: Mapping[str, int] = field(default_factory=dict)
    more: tuple[Metric, ...] = ()


def exposition(scrape: Scrape, accept: str = "") -> tuple[bytes, str]:
    """Return the metrics as text.

    Args:
        scrape: What is known.
        accept: The request's Accept header: OpenMetrics is answered to who asks for it.

    Returns:
        The body and its content type.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Run(scrape))
    ProcessCollector(registry=registry)
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _Run(Collector):
    """One scrape's metrics, in the order of the page; all series carry the job's name."""

    def __init__(self, scrape: Scrape) -> None:
        self._scrape = scrape
        self._name = label(scrape.status.job)

    def collect(self) -> Iterator[Metric]:
        """Return all families."""
        scrape = self._scrape
        yield self.info("eroica_job", "The job and the version of Eroica that watches it.", {"version": __version__})
        yield from _pace(self, scrape.status)
        yield from _agents(self, scrape)
        yield from _windows(self, scrape)
        yield from _verdict(self, scrape.verdict, scrape.verdict_at)
        yield from _blame(self, scrape.verdict.waits if scrape.verdict is not None else None)
        yield from scrape.more
        if scrape.messages:
            told = {(outcome,): scrape.messages.get(outcome, 0) for outcome in _OUTCOMES}
            yield self.counter("eroica_webhook_messages", "Messages for the webhook, by outcome.", told, ("result",))

    def gauge(
        self, name: str, text: str, value: float | Series | None, unit: str = "", keys: tuple[str, ...] = ()
    ) -> Metric:
        """Return one value, or a value for each value of more labels; no series where there is none."""
        return self._filled(GaugeMetricFamily(name, text, labels=["run", *keys], unit=unit), value)

    def counter(
        self, name: str, text: str, value: float | Series, keys: tuple[str, ...] = (), unit: str = ""
    ) -> Metric:
        """Return the same of numbers that only grow."""
        return self._filled(CounterMetricFamily(name, text, labels=["run", *keys], unit=unit), value)

    def _filled(self, family: Any, value: float | Series | None) -> Metric:
        """Fill a family with clean labels; of series whose labels become the same, the highest value counts."""
        shown: dict[tuple[str, ...], float] = {}
        series = value if isinstance(value, Mapping) else {} if value is None else {(): value}
        for names, each in series.items():
            clipped = tuple(map(label, names))
            shown[clipped] = max(each, shown.get(clipped, each))
        for names, each in shown.items():
            family.add_metric([self._name, *names], each)
        found: Metric = family
        return found

    def info(self, name: str, text: str, facts: Mapping[str, str]) -> Metric:
        """Return a series that is 1, for what it carries."""
        family = InfoMetricFamily(name, text, labels=["run"])
        family.add_metric([self._name], {key: label(value) for key, value in facts.items()})
        return family


def label(text: str) -> str:
    """Return a name from the job as the value of a label: one short line without control characters."""
    return clean(text, LONGEST_LABEL)


def _pace(run: _Run, status: JobStatus) -> Iterator[Metric]:
    mean_s, best_s = (None if ms is None else ms / 1e3 for ms in (status.mean_ms, status.best_ms))
    done = max((worker.iteration for worker in status.workers), default=0)
    yield run.counter("eroica_iterations", "Completed iterations, of the worker that is farthest.", done)
    yield run.gauge("eroica_iteration_mean", "Mean of the recent iterations, of the slowest worker.", mean_s, "seconds")
    yield run.gauge("eroica_iteration_best", "Best such mean so far, of the slowest worker.", best_s, "seconds")
    now = status.phase if status.phase in PHASES else "other"
    phases = {(phase,): float(phase == now) for phase in PHASES}
    yield run.gauge("eroica_phase", "1 for what the job or its open window is doing now.", phases, keys=("phase",))


def _agents(run: _Run, scrape: Scrape) -> Iterator[Metric]:
    living = [worker for worker in scrape.status.workers if not worker.ended]
    silent = sum(worker.silent for worker in living)
    yield run.gauge("eroica_workers_expected", "World size of the job; 0 = not known yet.", scrape.workers_expected)
    yield run.gauge("eroica_workers_alive", "Workers whose process is there, as their agents last said.", len(living))
    yield run.gauge("eroica_workers_silent", "Those that show no event for longer than their limit.", silent)
    ages = scrape.report_ages_s
    overdue = {host: age for host, age in ages.items() if age > scrape.overdue_s}
    shown = dict(ages) if len(ages) <= MOST_HOSTS else overdue
    worst_first = sorted(shown, key=lambda host: (-shown[host], host))[:MOST_HOSTS]
    text = f"Since the agent's last report; of more than {MOST_HOSTS} hosts only those overdue."
    yield run.gauge("eroica_agents_expected", "Hosts on which a worker lives.", len(ages))
    yield run.gauge("eroica_agents_alive", "Those whose agent reported lately.", len(ages) - len(overdue))
    listed = {(host,): shown[host] for host in worst_first}
    yield run.gauge("eroica_agent_report_age", text, listed, "seconds", ("host",))
    oldest = max(ages.values(), default=None)
    yield run.gauge("eroica_agent_report_age_max", "Of the host that was heard least recently.", oldest, "seconds")


def _windows(run: _Run, scrape: Scrape) -> Iterator[Metric]:
    opened = Counter(window.purpose for window in scrape.status.windows)
    given = Counter(verdict.verdict for verdict in scrape.verdicts)
    purposes = {(purpose,): opened[purpose] for purpose in get_args(WindowPurpose)}
    words = {(word,): given[word] for word in get_args(VerdictWord)}
    yield run.counter("eroica_windows", "Windows opened, by purpose.", purposes, ("purpose",))
    yield run.counter("eroica_verdicts", "Verdicts on windows, by word.", words, ("verdict",))
    for name, field_name, unit, text in _COSTS:
        total = sum(getattr(verdict.cost, field_name) for verdict in scrape.verdicts)
        yield run.counter(name, text, total, unit=unit)


def _verdict(run: _Run, verdict: Verdict | None, at: float | None) -> Iterator[Metric]:
    words = {(word,): float(verdict is not None and verdict.verdict == word) for word in get_args(VerdictWord)}
    text = "1 for the word of the newest verdict that holds; all 0 before there is one."
    yield run.gauge("eroica_verdict_state", text, words, keys=("verdict",))
    if verdict is None:
        return
    cause = verdict.cause
    facts = {"verdict": verdict.verdict, "cause": "", "function": "", "workers": "", "hosts": ""}
    if cause is not None:
        who = worker_list(cause.workers) if cause.workers else f"{cause.scope} workers"
        hosts = ", ".join(clean(host, 40) for host in cause.hosts[:3]) + (", …" if len(cause.hosts) > 3 else "")
        facts.update(cause=cause.cause, function=cause.function.name, workers=who, hosts=hosts)
    yield run.info("eroica_verdict", "What the newest verdict that holds says.", facts)
    yield run.gauge("eroica_verdict_timestamp", "When it stood, since 1970.", at, "seconds")
    gain, confidence = (cause.gain, cause.confidence) if cause is not None else (None, None)
    yield run.gauge("eroica_verdict_gain", "Share of an iteration that mending its cause would save.", gain, "ratio")
    yield run.gauge("eroica_verdict_confidence", "How sure it is of its cause, 0 to 1.", confidence, "ratio")


def _blame(run: _Run, waits: Waits | None) -> Iterator[Metric]:
    if waits is None:
        return
    worst_first = sorted(waits.blamed_ms, key=lambda rank: (-waits.blamed_ms[rank], rank))[:MOST_BLAMED]
    blamed_s = {(str(rank),): waits.blamed_ms[rank] / 1e3 for rank in worst_first}
    others_s = (waits.total_ms - waits.withheld_ms) / 1e3 - sum(blamed_s.values())
    blamed_s["other",] = max(others_s, 0.0)
    text = f"Waiting of others laid at a worker, per iteration; beyond the first {MOST_BLAMED} one sum."
    yield run.gauge("eroica_blame", text, blamed_s, "seconds", ("worker",))
    withheld = "Waiting per iteration that nobody is blamed for."
    yield run.gauge("eroica_blame_withheld", withheld, waits.withheld_ms / 1e3, "seconds")
