"""Builds the report of each command: which pictures, which tables, which sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from servegen.compare import Comparison
from servegen.fit import Fit
from servegen.pool import PROCESSES, Pool
from servegen.replay import Replay
from servegen.report import Chart, Report, Series, Table
from servegen.workload import Workload

#: Clients that tables and pictures name.
NAMED = 10


def pool_report(pool: Pool, name: str, notes: Sequence[str] = ()) -> Report:
    """Return what `show` says of a pool."""
    total, shares, active = pool.rate.sum(axis=0), pool.shares(), pool.rate > 0
    order = np.argsort(-shares)
    hours = np.arange(pool.windows) * pool.window_s / 3600
    mean_cv = (pool.rate * pool.cv).sum(axis=0) / np.maximum(total, 1e-300)
    fields = [field for field in ("input_tokens", "text_tokens", "output_tokens") if field in pool.lengths]
    rows = []
    for c in order[:NAMED]:
        rates, cvs = pool.rate[c][active[c]], pool.cv[c][active[c]]
        own = [f"{rates.mean():.3g}", f"{np.median(cvs):.2f}"] if len(rates) else ["0", "-"]
        means = [f"{entry.mean:.0f}" if (entry := pool.lengths[field][c]) else "-" for field in fields]
        rows.append([pool.clients[c], f"{shares[c]:.1%}", *own, *means])
    outputs = [(pool.clients[c], pool.lengths["output_tokens"][c]) for c in order[:5]]
    many = [Series(n, np.maximum(e.histograms[0].values, 1), e.histograms[0].cumulative) for n, e in outputs if e]
    charts = [
        Chart("Total rate", [Series("rate", hours, total)], "hour of the pool", "requests/s"),
        Chart("CV of gaps, mean over clients by rate", [Series("CV", hours, mean_cv)], "hour of the pool", "CV"),
        _skew(shares),
        _distribution("CV of client-windows", pool.cv[active], "CV", True),
        Chart("Output tokens of the five largest clients", many, "tokens", "share", "step", True),
    ]
    head = f"{len(pool.clients)} clients, {pool.span_s / 3600:g} hours, {total.mean():.4g} requests/s on average"
    skew = f"the largest client sends {shares[order[0]]:.0%}, the ten largest {shares[order[:10]].sum():.0%}"
    kinds = ", ".join(f"{(pool.process[active] == k).mean():.0%} {kind}" for k, kind in enumerate(PROCESSES))
    notes = [*notes, f"{active.mean():.0%} of the client-windows are active; {kinds}"]
    lacking, share = pool.without_lengths()
    if lacking:
        notes.append(f"{lacking} clients have no length histograms ({share:.0%} of the requests)")
    header = ["client", "share", "requests/s when active", "median CV", *(f"mean {field}" for field in fields)]
    return Report(f"Pool {name}", f"{head}; {skew}.", charts, [Table("Largest clients", header, rows)], notes)


def _skew(shares: np.ndarray) -> Chart:
    """Return the chart of cumulative shares of requests, largest client first."""
    series = Series("share", np.arange(1, len(shares) + 1), np.sort(shares)[::-1].cumsum())
    return Chart("Client skew", [series], "clients, largest first", "share of requests")


def _distribution(title: str, values: Sequence[float] | np.ndarray, unit: str, log: bool = False) -> Chart:
    """Return the chart of a distribution function."""
    return Chart(title, [Series("all", np.sort(values), np.linspace(0, 1, len(values)))], unit, "share", "step", log)


def requests_report(table: pa.Table, workload: Workload, notes: Sequence[str]) -> Report:
    """Return what `generate` says of the requests that it wrote."""
    times, seconds = table["time_us"].to_numpy() / 1e6, workload.hours * 3600
    client = table["client"].combine_chunks()
    names, index = client.dictionary.to_pylist(), client.indices.to_numpy()
    counts = np.bincount(index, minlength=len(names))
    order = np.argsort(-counts)[:NAMED]
    step = max(seconds / 240, 1.0)
    bins = int(seconds // step)
    hours = np.arange(bins) * step / 3600

    def per_second(own: np.ndarray) -> np.ndarray:
        return np.bincount((own // step).astype(int), minlength=bins)[:bins] / step

    share = np.linspace(0, 1, 400)
    sizes = ((field, table[field].to_numpy()) for field in ("input_tokens", "output_tokens"))
    lengths = [Series(field, np.maximum(np.quantile(values, share), 1), share) for field, values in sizes]
    top = [Series(names[c], hours, per_second(times[index == c])) for c in order[:4]]
    charts = [
        Chart("Requests", [Series("all", hours, per_second(times))], "hour", "requests/s"),
        Chart("Requests of the four largest clients", top, "hour", "requests/s"),
        _skew(counts / counts.sum()),
        Chart("Lengths", lengths, "tokens", "share", "step", True),
    ]
    spread = [[f"{w} s", f"{value:.2f}"] for w, value in dispersion(times, seconds).items()]
    by_client = [[names[c], str(counts[c]), f"{counts[c] / len(index):.1%}"] for c in order if counts[c]]
    tables = [
        Table("Dispersion of counts (variance over mean; 1 for Poisson)", ["window", "dispersion"], spread),
        Table("Largest clients", ["client", "requests", "share"], by_client),
    ]
    rate, senders = f"{len(times) / seconds:.4g} requests/s", (counts > 0).sum()
    verdict = f"{len(times)} requests in {workload.hours:g} hours, {rate}, from {senders} clients."
    return Report(f"Workload of pool {workload.pool}, seed {workload.seed}", verdict, charts, tables, notes)


def dispersion(times_s: np.ndarray, seconds: float, windows: Sequence[int] = (1, 10, 60)) -> dict[int, float]:
    """Return the variance over the mean of the requests per window, for each length of window in seconds."""
    found = {}
    for window in windows:
        whole = max(int(seconds // window), 1)
        counts = np.bincount((times_s // window).astype(int), minlength=whole)[:whole]
        found[window] = float(counts.var() / counts.mean()) if counts.mean() > 0 else 0.0
    return found


def fit_report(fit: Fit, name: str) -> Report:
    """Return what `fit` says of the pool that it wrote."""
    base = pool_report(fit.pool, name, fit.notes)
    ks = [w.family.ks for w in fit.windows if np.isfinite(w.family.ks)]
    chosen = [f"{PROCESSES[w.family.process]} ({w.family.decided_by})" for w in fit.windows]
    rows = [[kind, str(chosen.count(kind))] for kind in sorted(set(chosen), key=chosen.count, reverse=True)]
    charts = [*base.charts, _distribution("KS distance of gaps", ks, "KS distance")]
    return replace(base, charts=charts, tables=[*base.tables, Table("Families", ["family", "windows"], rows)])


def compare_report(comparison: Comparison, log: str, pool: str) -> Report:
    """Return what `compare` says."""
    charts, rows, named = [], [], []
    largest = sorted((f for f in comparison.findings if f.factor is not None), key=lambda f: -f.requests)
    for quantity in ("rate", "input_tokens", "output_tokens"):
        found = [f for f in largest if f.quantity == quantity][:NAMED]
        columns = ([f.factor or 0.0 for f in found], [f.low for f in found], [f.high for f in found])
        title = f"{quantity}: log over pool, 95 % interval"
        charts.append(_bars(title, "client", "factor", [f.client for f in found], *columns))
    for f in comparison.changes:
        size = "new" if f.factor is None else f"{f.factor:.2f} ({f.low:.2f} to {f.high:.2f})"
        rows.append([f.client, f.quantity, size, f"{f.p_value:.1e}", f"{f.extra_tokens_per_s:+.4g}", str(f.requests)])
        named.append(f"client {f.client}: {f.quantity} " + ("is new" if f.factor is None else f"× {f.factor:.2f}"))
    header = ["client", "quantity", "factor (95 % interval)", "p, corrected", "tokens/s added", "requests"]
    part = comparison.requests / comparison.expected if comparison.expected else float("nan")
    expected = f"all requests: {comparison.requests}, {part:.2f} of what the pool expects"
    notes = [*comparison.notes, f"aligned: {comparison.aligned}", expected]
    verdict = comparison.verdict.capitalize() + (": " + "; ".join(named[:5]) if named else "")
    tables = [Table("Changes", header, rows)] if rows else []
    return Report(f"{log} against pool {pool}", verdict + ".", charts, tables, notes)


def _bars(title: str, x: str, y: str, names: Sequence[str], *columns: Sequence[float]) -> Chart:
    """Return the chart of a bar per name; the columns are the bars and the ends of their intervals."""
    return Chart(title, [Series(y, range(len(names)), *columns)], x, y, "bars", labels=names)


def replay_report(replay: Replay, summary: dict[str, Any], model: str) -> Report:
    """Return what `replay` says."""
    overall, sender, prompts, slo = (summary[name] for name in ("all", "sender", "prompts", "slo"))
    good = [r for r in replay.records if not r.error]
    ttft = [(r.first_s or 0) - r.planned_s for r in good]
    per_token = [t for r in good if (t := r.per_token_s) is not None]
    late_ms = [1000 * (r.sent_s - r.planned_s) for r in replay.records]
    points = Series("requests", [r.planned_s for r in good], ttft)
    charts = [
        Chart("Time to first token, from the planned moment", [points], "second", "seconds", "points"),
        _distribution("Time to first token", ttft, "seconds", True),
        _distribution("Time per output token", per_token, "seconds", True),
        _distribution("Lateness of the sender", late_ms, "milliseconds"),
    ]
    rows = []
    by_size = sorted(summary["clients"].items(), key=lambda item: -item[1]["sent"])
    for name, values in [("all", overall), *by_size[:NAMED]]:
        times = [values[m].get(q) for m in ("ttft_s", "time_per_output_token_s") for q in ("p50", "p99")]
        cells = ["-" if time is None else f"{time:.3f}" for time in [*times, values["e2e_s"].get("p99")]]
        rows.append([name, str(values["sent"]), f"{values['failure_rate']:.1%}", *cells, f"{values['within_slo']:.1%}"])
    header = ["client", "sent", "failed", "TTFT p50", "p99", "per token p50", "p99", "end to end p99", "within limits"]
    notes = []
    if replay.interrupted:
        notes.append(f"stopped before its end: {overall['sent']} of {summary['planned']} requests were sent")
    late = f"the sender was late by {1000 * sender['lateness_s'].get('p99', 0.0):.1f} ms (p99)"
    limit = "; the sender was the limit, so latencies include its own delays" if sender["was_the_limit"] else ""
    notes.append(f"{late}, with {sender['busy']:.0%} of a core{limit}")
    if prompts["checked"]:
        other = f"{prompts['of_other_length']} of {prompts['counted']}"
        notes.append(f"prompts: the server counts another length than asked in {other}")
    else:
        notes.append("the server states no usage, so prompt lengths are not checked and chunks count as tokens")
    notes += [f"{count} failed: {reason}" for reason, count in overall["errors"].items()]
    kept = f"{overall['within_slo']:.1%} within {slo['ttft_s']:g} s TTFT and {slo['tbt_s']:g} s per token"
    head = f"{overall['sent']} requests, {overall['failure_rate']:.1%} failed"
    verdict = f"{head}, {kept}; goodput {overall['goodput_per_s']:.3g} requests/s."
    return Report(f"Replay against {model}", verdict, charts, [Table("Latency (seconds)", header, rows)], notes)


def size_report(sizing: dict[str, Any]) -> Report:
    """Return what `size` says; `sizing` is the JSON of `size.to_json`."""
    groups, slo, error = sizing["generators"], sizing["slo"], sizing["engine_error"]
    columns = ([group[f"instances_{part}"] for group in groups.values()] for part in ("median", "low", "high"))
    curves, rows = [], []
    for name, group in groups.items():
        need = next(need for need in sizing["needs"] if need["generator"] == name)
        seen = [(int(n), quantiles[0]) for n, quantiles in need["tried"].items() if quantiles is not None]
        curves.append(Series(name, [n for n, _ in seen], [t for _, t in seen]))
        against = "-" if group["against_log"] is None else f"{group['against_log']:+.0%}"
        seeds = f"{group['instances_low']} to {group['instances_high']}"
        rows.append([name, f"{group['instances_median']:g}", seeds, against])
    quantile = f"p{100 * slo['quantile']:g}"
    charts = [
        _bars("Instances needed, range over seeds", "workload", "instances", list(groups), *columns),
        Chart(f"TTFT ({quantile}) by instances, first seed", curves, "instances", "seconds"),
    ]
    note = "the engine is not calibrated: its times are assumptions (`servegen calibrate` fits them to a replay)"
    if error is not None:
        parts = ", ".join(f"{name} {value:+.1%}" for name, value in error.items())
        note = f"error of the simulation against the real engine: {parts}"
    limits = f"{quantile} of TTFT within {slo['ttft_s']:g} s and of the time between tokens within {slo['tbt_s']:g} s"
    verdict = f"{rows[0][1]} instances keep {limits}."
    table = Table("Instances", ["workload", "median", "seeds", "against the log"], rows)
    return Report("Size of the fleet", verdict, charts, [table], [note])
