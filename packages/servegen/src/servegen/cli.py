"""The `servegen` command."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec
import pyarrow as pa
from rich.console import Console

from servegen.compose import plan, stream
from servegen.engine import ROUTERS, Engine, read_engine
from servegen.errors import BadRequest, ServeGenError
from servegen.export import FORMATS, guess_format, read_requests, write_requests
from servegen.files import one_line, read_rows, write_json
from servegen.logs import LogOptions, read_log
from servegen.pool import Pool, read_pool, write_pool
from servegen.report import Report, print_text, write_html
from servegen.workload import Slo, Workload, parse_rate, pool_digest, read_workload, write_workload

#: Requests up to which `generate --html` keeps them in memory for its page.
MOST_SHOWN = 5_000_000
F = TypeVar("F", bound=Callable[..., Any])
RANGE, ANY = (float, float), (0.0, float("inf"))
MANY = click.IntRange(min=1)
FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)


class _Main(click.Group):
    """Errors of this package and of files end a command with one line."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ServeGenError as error:
            raise click.ClickException(str(error)) from error
        except OSError as error:
            text = f"{error.filename}: {error.strerror}" if error.filename else one_line(error)
            raise click.ClickException(text) from error


@click.group(cls=_Main)
@click.version_option(package_name="servegen")
def main() -> None:
    """LLM serving workloads per client: fit, generate, compare, replay, size. POOL is a folder, or "sample"."""


def _show(report: Report, html: Path | None, json_file: Path | None = None, values: Any = None) -> None:
    print_text(report, Console())
    if json_file is not None:
        write_json(values, json_file)
    if html is not None:
        write_html(report, html)
        click.echo(f"page: {html}")


def _options(*options: Callable[[F], F]) -> Callable[[F], F]:
    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


html_option = click.option("--html", type=FILE, help="Write a page with pictures.")
json_option = click.option("--json", "json_file", type=FILE, help="Write the result as JSON.")
processes_option = click.option(
    "--processes", type=MANY, default=1, show_default=True, help="Processes; the result is the same."
)
log_options = _options(
    click.option("--client", default="", help="Column that tells clients apart."),
    click.option("--time", default="", help="Column of the time."),
    click.option(
        "--time-unit", default="", type=click.Choice(["", "s", "ms", "us", "ns"]), help="Unit of numeric times."
    ),
    click.option("--from", "start_s", default=0.0, help="Leave out the log's first seconds, such as a ramp."),
    click.option("--to", "end_s", default=float("inf"), help="Leave out the log after this second."),
    click.option("--keep-failed", is_flag=True, help="Keep requests without output tokens."),
    click.option("--clock", "clock_s", type=float, help="Step of the log's clock in seconds; found if not given."),
)
workload_options = _options(
    click.argument("pool"),
    click.option("--rate", help="Requests per second in all, or a CSV or JSON file of (second, rate)."),
    click.option("--hours", default=1.0, show_default=True),
    click.option("--start-hour", default=0.0, show_default=True, help="Hour of the pool at which to begin."),
    click.option("--seed", default=0, show_default=True),
    click.option("--counts", type=click.Choice(["renewal", "exact"]), default="renewal", show_default=True),
    click.option("--coupling", default="independent", show_default=True, help="independent, comonotone or rank:RHO"),
    click.option("--repeat", is_flag=True, help="Start the pool again at its end."),
    click.option("--sessions", help="Conversations: `default`, or JSON such as {\"share\": 0.3, \"turns\": 4}."),
    click.option("--ttft", default=2.0, show_default=True, help="Limit of the time to the first token, seconds."),
    click.option("--tbt", default=0.1, show_default=True, help="Limit of the time between tokens, seconds."),
    click.option("--quantile", default=0.99, show_default=True, help="Share that must keep the limits."),
)  # fmt: skip


def _workload(only_client: tuple[str, ...] = (), **o: Any) -> tuple[Workload, Pool]:
    """Return the workload that options describe, or that a workload file holds, and its pool."""
    if o["pool"].endswith((".yaml", ".yml")):
        stated = read_workload(Path(o["pool"]))
        return stated, stated.read_pool(Path(o["pool"]).parent)
    fields = {key: o[key] for key in ("pool", "hours", "start_hour", "seed", "counts", "coupling", "repeat")}
    slo = {"ttft_s": o["ttft"], "tbt_s": o["tbt"], "quantile": o["quantile"]}
    try:
        sessions = None if not o["sessions"] else {} if o["sessions"] == "default" else json.loads(o["sessions"])
        fields |= {"rate": parse_rate(o["rate"]), "only_clients": list(only_client), "slo": slo, "sessions": sessions}
        workload = msgspec.convert(fields, Workload)
    except (msgspec.ValidationError, json.JSONDecodeError) as error:
        raise BadRequest(f"an option is out of range: {error}") from error
    return workload, workload.read_pool()


@main.command()
@click.argument("pool")
@html_option
def show(pool: str, html: Path | None) -> None:
    """Print and draw what a pool holds."""
    from servegen.views import pool_report

    _show(pool_report(read_pool(pool), pool), html)


@main.command("import")
@click.argument("folder", type=FOLDER)
@click.option("-o", "--out", type=FOLDER, required=True)
def import_(folder: Path, out: Path) -> None:
    """Read a FOLDER in the authors' published layout and write a pool."""
    from servegen.published import import_published

    pool = import_published(folder)
    write_pool(pool, out)
    click.echo(f"{len(pool.clients)} clients, {pool.span_s / 3600:g} hours: {out}")


@main.command("filter")
@click.argument("pool")
@click.option("-o", "--out", type=FOLDER, required=True)
@click.option("--client", "clients", multiple=True, help="Keep this client; may be repeated.")
@click.option("--share", "least_share", default=0.0, help="Keep clients with at least this share of the requests, 0-1.")
@click.option("--cv", type=RANGE, default=ANY, help="Keep clients with a mean CV in this range.")
@click.option(
    "--input", "mean_input", type=RANGE, default=ANY, help="Keep clients with mean input tokens in this range."
)
def filter_(pool: str, out: Path, **filters: Any) -> None:
    """Write the part of a POOL that passes all filters."""
    kept = read_pool(pool).filtered(**filters)
    write_pool(kept, out)
    click.echo(f"{len(kept.clients)} clients, {kept.span_s / 3600:g} hours: {out}")


@main.command()
@workload_options
@click.option("-o", "--out", type=FILE, required=True)
@click.option("--format", "form", type=click.Choice(FORMATS), help="By default parquet or jsonl, by the file's name.")
@click.option("--only-client", multiple=True, help="Emit only this client; may be repeated.")
@processes_option
@html_option
def generate(out: Path, form: str | None, processes: int, html: Path | None, **options: Any) -> None:
    """Generate requests from POOL, a pool or a workload file; write FILE and FILE.workload.yaml."""
    from servegen.views import requests_report

    workload, pool = _workload(**options)
    workload = msgspec.structs.replace(workload, pool_digest=pool_digest(pool))
    made = plan(workload, pool)
    kept: list[pa.Table] = []

    def watched() -> Iterator[pa.Table]:
        for table in stream(made, processes):
            if html is not None and sum(t.num_rows for t in kept) < MOST_SHOWN:
                kept.append(table)
            yield table

    facts = {"workload": msgspec.to_builtins(workload)}
    count = write_requests(watched(), out, form or guess_format(out), facts)
    stated = out.with_name(out.name + ".workload.yaml")
    write_workload(workload, stated)
    if html is not None:
        shown, notes = pa.concat_tables(kept).unify_dictionaries(), made.notes
        if shown.num_rows < count:
            notes = (*notes, f"this page shows the first {shown.num_rows} of {count} requests")
            workload = msgspec.structs.replace(workload, hours=shown["time_us"][-1].as_py() / 3.6e9)
        _show(requests_report(shown, workload, notes), html)
    for note in made.notes if html is None else ():
        click.echo(f"note: {note}")
    click.echo(f"{count} requests: {out}; to repeat: {stated}")


@main.command()
@click.argument("log", type=FILE)
@click.option("-o", "--out", type=FOLDER, required=True)
@log_options
@click.option("--window", default=600, show_default=True, help="Seconds of a window.")
@click.option("--rest-share", default=0.0005, show_default=True, help="Clients below this share are merged into one.")
@processes_option
@html_option
def fit(log: Path, out: Path, window: int, rest_share: float, processes: int, html: Path | None, **o: Any) -> None:
    """Fit a pool to a LOG: CSV, JSONL or Parquet."""
    from servegen.fit import LENGTHS_S, fit_log, write_fit
    from servegen.views import fit_report

    if window <= 0 or LENGTHS_S % window:
        raise BadRequest(f"--window {window} does not divide 6 hours")
    found = fit_log(read_log(log, LogOptions(**o)), window, rest_share, processes)
    write_fit(found, out)
    _show(fit_report(found, str(out)), html)


@main.command()
@click.argument("log", type=FILE)
@click.argument("pool")
@log_options
@click.option("--align", type=click.Choice(["auto", "time-of-day", "start"]), default="auto", show_default=True)
@click.option("--start-hour", default=0.0, help="With --align start: hour of the pool at which the log begins.")
@json_option
@html_option
def compare(log: Path, pool: str, json_file: Path | None, html: Path | None, **options: Any) -> None:
    """Say which client's rate or lengths in LOG differ from POOL."""
    from servegen.compare import compare_log
    from servegen.views import compare_report

    align, start_hour = options.pop("align"), options.pop("start_hour")
    found = compare_log(read_log(log, LogOptions(**options)), read_pool(pool), align, start_hour)
    _show(compare_report(found, str(log), pool), html, json_file, found)


@main.command()
@click.argument("file", type=FILE)
@click.option("--url", "urls", multiple=True, required=True, help="Base URL of a server; several are used in turn.")
@click.option("--model", required=True)
@click.option("--ttft", default=2.0, show_default=True, help="Limit of the time to the first token, seconds.")
@click.option("--tbt", default=0.1, show_default=True, help="Limit of the time per output token, seconds.")
@click.option("--timeout", "timeout_s", default=600.0, show_default=True, help="Seconds of a request at most.")
@click.option("--speed", default=1.0, show_default=True, help="Run the workload's clock faster.")
@click.option("--metrics-port", type=click.IntRange(0, 65_535), default=0, help="Port of Prometheus metrics.")
@click.option("--api-key", envvar="SERVEGEN_API_KEY", default="", help="Bearer token; also SERVEGEN_API_KEY.")
@click.option("--body", default="{}", help='JSON added to each request, such as {"ignore_eos": true}.')
@click.option("--records", type=FILE, help="Write one row per request as Parquet.")
@json_option
@html_option
def replay(file: Path, body: str, records: Path | None, json_file: Path | None, html: Path | None, **o: Any) -> None:
    """Send the requests of FILE to a server at their planned moments. Ctrl-C ends it with the results so far."""
    from servegen.replay import ReplayOptions, replay_requests, summarize, write_records
    from servegen.views import replay_report

    try:
        extra = tuple(json.loads(body).items())
    except (ValueError, AttributeError) as error:
        raise BadRequest(f"--body is not a JSON object ({error})") from error
    slo = Slo(o.pop("ttft"), o.pop("tbt"))
    ticks = itertools.count()

    def progress(sent: int, finished: int, planned: int) -> None:
        if next(ticks) % 10 == 0:
            click.echo(f"sent {sent} of {planned}, finished {finished}", err=True)

    result = replay_requests(read_requests(file), ReplayOptions(body=extra, **o), progress)
    summary = summarize(result, slo)
    if records is not None:
        write_records(result.records, records)
    _show(replay_report(result, summary, o["model"]), html, json_file, summary)


@main.command()
@click.argument("records", type=FILE)
@click.option("-o", "--out", type=FILE, required=True, help="The engine's YAML file.")
@click.option("--base", type=FILE, help="YAML file with the engine's sizes.")
@click.option("--check", type=FILE, help="Records of another replay, to state the error on.")
def calibrate(records: Path, out: Path, base: Path | None, check: Path | None) -> None:
    """Fit the simulated engine's times to the RECORDS of a replay."""
    from servegen.calibrate import agreement
    from servegen.calibrate import calibrate as fit_engine
    from servegen.replay import Record

    rows = read_rows(records, Record)
    engine = fit_engine(rows, read_engine(base) if base else Engine())
    checks = {"same replay": rows} | ({"other replay": read_rows(check, Record)} if check else {})
    for name, checked in checks.items():
        errors = agreement(engine, checked).errors()
        click.echo(f"error on the {name}: " + ", ".join(f"{k} {v:+.1%}" for k, v in errors.items()))
    out.write_bytes(msgspec.yaml.encode(engine))


@main.command()
@workload_options
@click.option("--engine-file", type=FILE, help="One instance, as `calibrate` writes it.")
@click.option("--check", type=FILE, help="Records of a replay: state the engine's error on them.")
@click.option("--log", type=FILE, help="Requests to size beside, such as a held-out log.")
@click.option("--router", type=click.Choice(ROUTERS), default=ROUTERS[0], show_default=True)
@click.option("--seeds", type=MANY, default=5, show_default=True)
@click.option("--engine", "parallel", type=click.Choice(["process", "ray"]), default="process", show_default=True)
@click.option("--workers", type=MANY, default=len(os.sched_getaffinity(0)), show_default=True)
@json_option
@html_option
def size(engine_file: Path | None, check: Path | None, json_file: Path | None, html: Path | None, **o: Any) -> None:
    """Say how many instances POOL's workload needs, beside naive generators."""
    from servegen.calibrate import agreement
    from servegen.replay import Record
    from servegen.size import SizeOptions, size_workload, to_json
    from servegen.views import size_report

    workload, pool = _workload(**o)
    engine = read_engine(engine_file) if engine_file else Engine()
    chosen = {name: o[name] for name in ("router", "seeds", "workers", "parallel")}
    how = SizeOptions(engine, workload.slo, **chosen)
    needs = size_workload(workload, pool, how, read_requests(o["log"]) if o["log"] else None)
    error = agreement(engine, read_rows(check, Record)).errors() if check else None
    sizing = to_json(needs, how, workload, error)
    _show(size_report(sizing), html, json_file, sizing)


if __name__ == "__main__":
    main()
