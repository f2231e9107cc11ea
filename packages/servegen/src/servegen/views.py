"""Builds the report of each command: which pictures, which tables, which sentence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    total = pool.rate.sum(axis=0)
    shares = pool.shares()
    order = np.argsort(-shares)
    hours = np.arange(pool.windows) * pool.window_s / 3600
    active = pool.rate > 0
    mean_cv = (pool.rate * pool.cv).sum(axis=0) / np.maximum(total, 1e-300)
    lacking, lacking_share = pool.without_lengths()
    fields = [field for field in ("input_tokens", "text_tokens", "output_tokens") if field in pool.lengths]
    rows = [
        [
            pool.clients[c],
            f"{shares[c]:.1%}",
            f"{pool.rate[c][active[c]].mean():.3g}" if active[c].any() else "0",
            f"{np.median(pool.cv[c][active[c]]):.2f}" if active[c].any() else "-",
            *(_mean(pool, field, int(c)) for field in fields),
        ]
        for c in order[:NAMED]
    ]
    kinds = ", ".join(f"{(pool.process[active] == k).mean():.0%} {kind}" for k, kind in enumerate(PROCESSES))
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
    notes = [*notes, f"{active.mean():.0%} of the client-windows are active; {kinds}"]
    if lacking:
        notes.append(f"{lacking} clients have no length histograms ({lacking_share:.0%} of the requests)")
    header = ["client", "share", "requests/s when active", "median CV", *(f"mean {field}" for field in fields)]
    return Report(f"Pool {name}", f"{head}; {skew}.", charts, [Table("Largest clients", header, rows)], notes)


def _mean(pool: Pool, field: str, c: int) -> str:
    entry = pool.lengths[field][c]
    return "-" if entry is None else f"{np.mean([h.mean for h in entry.histograms]):.0f}"


def _skew(shares: np.ndarray) -> Chart:
    """Return the chart of cumulative shares of requests, largest client first."""
    cumulative = np.sort(shares)[::-1].cumsum()
    series = Series("share", np.arange(1, len(shares) + 1), cumulative)
    return Chart("Client skew", [series], "clients, largest first", "share of requests")


def _distribution(title: str, values: Sequence[float] | np.ndarray, unit: str, log: bool = False) -> Chart:
    """Return the chart of a distribution function."""
    return Chart(title, [Series("all", np.sort(values), np.linspace(0, 1, len(values)))], unit, "share", "step", log)


def requests_report(tables: Iterable[pa.Table], workload: Workload, notes: Sequence[str]) -> Report:
    """Return what `generate` says of the requests that it wrote."""
    columns = [t.select(["time_us", "client", "input_tokens", "output_tokens"]) for t in tables]
    table = pa.concat_tables(columns).unify_dictionaries().combine_chunks()
    times = table["time_us"].to_numpy() / 1e6
    client = table["client"].combine_chunks()
    names, index = client.dictionary.to_pylist(), client.indices.to_numpy()
    counts = np.bincount(index, minlength=len(names))
    order = np.argsort(-counts)[:NAMED]
    seconds = workload.hours * 3600
    step = max(seconds / 240, 1.0)
    per_step = np.bincount((times // step).astype(int), minlength=int(seconds // step)) / step
    hours = np.arange(len(per_step)) * step / 3600
    charts = [Chart("Requests", [Series("all", hours, per_step)], "hour", "requests/s")]
    top = [
        Series(names[c], hours, np.bincount((times[index == c] // step).astype(int), minlength=len(hours)) / step)
        for c in order[:4]
    ]
    charts.append(Chart("Requests of the four largest clients", top, "hour", "requests/s"))
    charts.append(_skew(counts / max(counts.sum(), 1)))
    lengths = [Series(f, *_sample_cdf(table[f].to_numpy())) for f in ("input_tokens", "output_tokens")]
    charts.append(Chart("Lengths", lengths, "tokens", "share", "step", True))
    rows = [[f"{w} s", f"{value:.2f}"] for w, value in dispersion(times, seconds).items()]
    tables_ = [Table("Dispersion of counts (variance over mean; 1 for Poisson)", ["window", "dispersion"], rows)]
    by_client = [[names[c], str(counts[c]), f"{counts[c] / max(len(index), 1):.1%}"] for c in order if counts[c]]
    tables_.append(Table("Largest clients", ["client", "requests", "share"], by_client))
    rate = f"{len(times) / seconds:.4g} requests/s"
    verdict = f"{len(times)} requests in {workload.hours:g} hours, {rate}, from {(counts > 0).sum()} clients."
    return Report(f"Workload of pool {workload.pool}, seed {workload.seed}", verdict, charts, tables_, notes)


def dispersion(times_s: np.ndarray, seconds: float, windows: Sequence[int] = (1, 10, 60)) -> dict[int, float]:
    """Return the variance over the mean of the requests per window, for each length of window in seconds."""
    found = {}
    for window in windows:
        whole = max(int(seconds // window), 1)
        counts = np.bincount((times_s // window).astype(int), minlength=whole)[:whole]
        found[window] = float(counts.var() / counts.mean()) if counts.mean() > 0 else 0.0
    return found


def _sample_cdf(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    share = np.linspace(0, 1, 400)
    return np.maximum(np.quantile(values, share) if len(values) else share, 1), share


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
    named = [
        f"client {f.client}: {f.quantity} {f'× {f.factor:.2f}' if f.factor is not None else 'is new'}"
        for f in comparison.changes
    ]
    verdict = comparison.verdict[0].upper() + comparison.verdict[1:] + (": " + "; ".join(named[:5]) if named else "")
    factor = comparison.requests / comparison.expected if comparison.expected else float("nan")
    largest = sorted((f for f in comparison.findings if f.factor is not None), key=lambda f: -f.requests)
    charts = []
    for quantity in ("rate", "input_tokens", "output_tokens"):
        found = [f for f in largest if f.quantity == quantity][:NAMED]
        columns = np.array([(f.factor or 0.0, f.low, f.high) for f in found]).reshape(-1, 3).T
        title, names = f"{quantity}: log over pool, 95 % interval", [f.client for f in found]
        charts.append(
            Chart(title, [Series("factor", range(len(found)), *columns)], "client", "factor", "bars", labels=names)
        )
    rows = [
        [
            f.client,
            f.quantity,
            "new" if f.factor is None else f"{f.factor:.2f} ({f.low:.2f} to {f.high:.2f})",
            f"{f.p_value:.1e}",
            f"{f.extra_tokens_per_s:+.4g}",
            str(f.requests),
        ]
        for f in comparison.changes
    ]
    header = ["client", "quantity", "factor (95 % interval)", "p, corrected", "tokens/s added", "requests"]
    expected = f"all requests: {comparison.requests}, {factor:.2f} of what the pool expects"
    notes = [*comparison.notes, f"aligned: {comparison.aligned}", expected]
    tables = [Table("Changes", header, rows)] if rows else []
    return Report(f"{log} against pool {pool}", verdict + ".", charts, tables, notes)


def replay_report(replay: Replay, summary: dict[str, Any], model: str) -> Report:
    """Return what `replay` says."""
    overall, sender, prompts = summary["all"], summary["sender"], summary["prompts"]
    good = [r for r in replay.records if not r.error and r.first_s is not None]
    ttft = [(r.first_s or 0) - r.planned_s for r in good]
    points = Series("requests", [r.planned_s for r in good], ttft)
    charts = [
        Chart("Time to first token, from the planned moment", [points], "second", "seconds", "points"),
        _distribution("Time to first token", ttft, "seconds", True),
        _distribution("Time per output token", [t for r in good if (t := r.per_token_s) is not None], "seconds", True),
        _distribution(
            "Lateness of the sender", [1000 * (r.sent_s - r.planned_s) for r in replay.records], "milliseconds"
        ),
    ]
    rows = [_replay_row("all", overall)]
    rows += [_replay_row(*item) for item in sorted(summary["clients"].items(), key=lambda x: -x[1]["sent"])[:NAMED]]
    header = ["client", "sent", "failed", "TTFT p50", "p99", "per token p50", "p99", "end to end p99", "within limits"]
    notes = []
    if replay.interrupted:
        notes.append(f"stopped before its end: {overall['sent']} of {summary['planned']} requests were sent")
    late_p99 = (sender["lateness_s"] or {}).get("p99", 0.0)
    limit = "; the sender was the limit, so latencies include its own delays" if sender["was_the_limit"] else ""
    notes.append(f"the sender was late by {late_p99 * 1000:.1f} ms (p99), with {sender['busy']:.0%} of a core{limit}")
    notes.append(
        f"prompts: the server counts another length than asked in {prompts['of_other_length']} of {prompts['counted']}"
        if prompts["checked"]
        else "the server states no usage, so prompt lengths are not checked and chunks count as tokens"
    )
    notes += [f"{count} failed: {reason}" for reason, count in overall["errors"].items()]
    verdict = (
        f"{overall['sent']} requests, {overall['failure_rate']:.1%} failed, {overall['within_slo']:.1%} within "
        f"{summary['slo']['ttft_s']:g} s TTFT and {summary['slo']['tbt_s']:g} s per token; "
        f"goodput {overall['goodput_per_s']:.3g} requests/s."
    )
    return Report(f"Replay against {model}", verdict, charts, [Table("Latency (seconds)", header, rows)], notes)


def _replay_row(name: str, values: dict[str, Any]) -> list[str]:
    def cell(metric: str, quantile: str) -> str:
        value = values[metric].get(quantile)
        return "-" if value is None else f"{value:.3f}"

    metrics = [(m, q) for m in ("ttft_s", "time_per_output_token_s") for q in ("p50", "p99")] + [("e2e_s", "p99")]
    head = [name, str(values["sent"]), f"{values['failure_rate']:.1%}"]
    return [*head, *(cell(*m) for m in metrics), f"{values['within_slo']:.1%}"]


def size_report(sizing: dict[str, Any]) -> Report:
    """Return what `size` says; `sizing` is the JSON of `size.to_json`."""
    groups = sizing["generators"]
    names = list(groups)
    columns = ([groups[n][f"instances_{part}"] for n in names] for part in ("median", "low", "high"))
    series = Series("instances", range(len(names)), *columns)
    charts = [Chart("Instances needed, range over seeds", [series], "workload", "instances", "bars", labels=names)]
    curves = []
    for name in names:
        need = next(need for need in sizing["needs"] if need["generator"] == name)
        seen = [(int(n), quantiles[0]) for n, quantiles in need["tried"].items() if quantiles is not None]
        curves.append(Series(name, [n for n, _ in seen], [t for _, t in seen]))
    quantile = f"p{100 * sizing['slo']['quantile']:g}"
    charts.append(Chart(f"TTFT ({quantile}) by instances, first seed", curves, "instances", "seconds"))
    rows = [
        [
            name,
            f"{group['instances_median']:g}",
            f"{group['instances_low']} to {group['instances_high']}",
            "-" if group["against_log"] is None else f"{group['against_log']:+.0%}",
        ]
        for name, group in groups.items()
    ]
    error = sizing["engine_error"]
    notes = [
        "the engine is not calibrated: its times are assumptions (`servegen calibrate` fits them to a replay)"
        if error is None
        else "error of the simulation against the real engine: " + ", ".join(f"{k} {v:+.1%}" for k, v in error.items())
    ]
    first = groups.get("servegen", groups[names[0]])
    verdict = (
        f"{first['instances_median']:g} instances keep {quantile} of TTFT within {sizing['slo']['ttft_s']:g} s "
        f"and of the time between tokens within {sizing['slo']['tbt_s']:g} s."
    )
    table = Table("Instances", ["workload", "median", "seeds", "against the log"], rows)
    return Report("Size of the fleet", verdict, charts, [table], notes)
