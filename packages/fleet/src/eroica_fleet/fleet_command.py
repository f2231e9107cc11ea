"""`eroica fleet`: questions to a fleet's service, and its administration; as a table, or as JSON."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
from eroica.cli.output import check_target, make_console, on_terminal, say, write_result
from eroica.errors import InputError, UnavailableError, UsageError
from eroica.model.shares import percent
from eroica.model.words import clean
from eroica.settings import Settings, load_settings

_TIMEOUT_S = 60.0
_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")


@click.group(short_help="Ask a fleet's service: hosts, jobs, functions, trends; tokens, projects.")
def fleet() -> None:
    """Ask the service that EROICA_FLEET names, with the token in EROICA_FLEET_TOKEN."""


@fleet.command()
@click.option("--search", "q", default="", help="In names of jobs and hosts, causes, commits.")
@click.option("--state", default="", help="running, lost, over, slow, blocked, healthy or undetermined.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 500))
@_as_json
def jobs(q: str, state: str, limit: int, as_json: bool) -> None:
    """Jobs, the last heard of first; RUN of other commands is the number in the first column."""
    found = _ask("GET", "/v1/runs", {"q": q, "state": state, "limit": str(limit)})
    columns = ("run", "job", "state", "verdict", "cause", "mean ms", "workers", "hosts", "heard", "commit")
    rows = [
        (
            run["id"], run["job"], run["state"], run["verdict"], run["cause"], _ms(run["mean_ms"]), run["workers"],
            run["hosts"], _ago(run["heard_at"]), run["commit"],
        )
        for run in found["runs"]
    ]  # fmt: skip
    _show(found, as_json, columns, rows)


@fleet.command()
@click.option("--days", default=30.0, show_default=True, help="How far back.")
@_as_json
def hosts(days: float, as_json: bool) -> None:
    """Hosts that jobs named as culprits, those first that chance does not account for."""
    found = _ask("GET", "/v1/hosts", {"days": str(days), "limit": "1000"})
    columns = ("", "host", "named", "of runs", "jobs", "expected", "chance", "for", "devices", "last", "repaired")
    rows = [
        (
            "!" if host["suspicious"] else "", host["host"], host["named"], host["runs"], host["jobs"],
            f"{host['expected']:.1f}", _chance(host["of_any"]), ", ".join(host["causes"]), _devices(host),
            _ago(host["last_at"]), "named again since" if host["again"] else "",
        )
        for host in found["hosts"]
    ]  # fmt: skip
    _show(found, as_json, columns, rows)


def _devices(host: dict[str, Any]) -> str:
    """Each with how often it was named, and the odds that chance picks one of the host's as often."""
    chances = host.get("device_chances", {})  # an earlier service tells none
    return ", ".join(
        f"{device} ({times}x" + (f", {chances[device]:.0e})" if device in chances else ")")
        for device, times in host["devices"].items()
    )


@fleet.command()
@click.option("--days", default=30.0, show_default=True, help="How far back.")
@_as_json
def functions(days: float, as_json: bool) -> None:
    """Functions that are slow in several jobs."""
    found = _ask("GET", "/v1/functions", {"days": str(days), "limit": "1000"})
    rows = [
        (
            one["function"], one["cause"], one["jobs"], one["of_jobs"], percent(one["gain"]), _ago(one["first_at"]),
            ", ".join(one["names"]),
        )
        for one in found["functions"]
    ]  # fmt: skip
    _show(found, as_json, ("function", "cause", "jobs", "of", "costs", "first", "where"), rows)


@fleet.command()
@click.option("--days", default=30.0, show_default=True, help="How far back.")
@_as_json
def trends(days: float, as_json: bool) -> None:
    """Causes that began for many jobs at one moment, and jobs that are slower than their own earlier runs."""
    found = _ask("GET", "/v1/trends", {"days": str(days)})
    rows = [
        (
            one["cause"],
            one["function"],
            f"{one['jobs']} of {one['running']}",
            _ago(one["began_at"]),
            f"{one['chance']:.0e}",
        )
        for one in found["trends"]
    ]
    _show(found, as_json, ("cause", "function", "jobs", "began", "chance"), rows)
    if not as_json:
        for one in found["slower"]:
            say(clean(one["summary"], 600))


@fleet.command()
@_as_json
def alerts(as_json: bool) -> None:
    """Alerts that stand, and the last that no longer do."""
    found = _ask("GET", "/v1/alerts")
    rows = [
        (
            one["kind"],
            one["text"],
            _ago(one["raised_at"]),
            f"cleared {_ago(one['cleared_at'])}" if one["cleared_at"] else "",
        )
        for one in found["alerts"]
    ]
    _show(found, as_json, ("kind", "what", "raised", ""), rows)


@fleet.command()
@click.argument("name")
@click.option("--project", default="", help="The operator: of which project, if there are several; * sees all.")
@click.option(
    "--scopes",
    default="report",
    show_default=True,
    help="Any of report, read, window, administer, with commas; operate makes an operator's.",
)
@click.option("--days", default=0.0, help="Valid for so many days; 0 = until it is revoked.")
def token(name: str, project: str, scopes: str, days: float) -> None:
    """Make a token called NAME and print it, once."""
    wish = {"name": name, "project": project, "scopes": [word.strip() for word in scopes.split(",")], "days": days}
    click.echo(_ask("POST", "/v1/tokens", body=wish)["token"])


@fleet.command()
@_as_json
def tokens(as_json: bool) -> None:
    """Tokens by name and scope; what they are cannot be shown."""
    found = _ask("GET", "/v1/tokens")
    rows = [
        (
            one["id"], one["name"], one["project"] or "all", one["scopes"], "revoked" if one["revoked_at"] else "",
            _ago(one["created_at"]),
        )
        for one in found
    ]  # fmt: skip
    _show(found, as_json, ("id", "name", "project", "scopes", "", "made"), rows)


@fleet.command()
@click.argument("token_id", type=int)
def revoke(token_id: int) -> None:
    """End the token with this number (`eroica fleet tokens`)."""
    _ask("DELETE", f"/v1/tokens/{token_id}")
    say(f"token {token_id} ends within 5 s")


@fleet.command()
@click.argument("name")
def project(name: str) -> None:
    """Make a project (the operator)."""
    _ask("POST", "/v1/projects", body={"name": name})
    say(f"project {clean(name, 100)} is there; `eroica fleet token --project` makes its tokens")


@fleet.command()
@click.argument("host")
@click.option("--note", default="", help="What was done.")
@click.option("--project", default="", help="The operator: of which project, if there are several.")
def repaired(host: str, note: str, project: str) -> None:
    """Say that HOST was repaired or replaced: what it is named for from now on counts anew."""
    _ask("POST", "/v1/repairs", body={"host": host, "note": note, "project": project})
    say(f"{clean(host, 100)} counts anew from now on")


@fleet.command()
@click.argument("run_id", type=int)
@click.option("--seconds", default=0.0, help="Length; 0 = as the job's settings say.")
@click.option("--reason", default="asked for by the fleet", show_default=True)
def profile(run_id: int, seconds: float, reason: str) -> None:
    """Ask for a window on a running job, whose number `eroica fleet jobs` shows; it opens when the job reports next."""
    _ask("POST", f"/v1/runs/{run_id}/window", body={"seconds": seconds, "reason": reason})
    say("asked for; the job hears of it with its next report, up to half a minute from now")


@fleet.command()
@_as_json
def audit(as_json: bool) -> None:
    """Who changed what, the latest first."""
    found = _ask("GET", "/v1/audit")
    rows = [(_ago(one["at"]), one["who"], one["action"], one["detail"], one["address"]) for one in found]
    _show(found, as_json, ("when", "who", "did", "what", "from"), rows)


@fleet.command()
@_as_json
def sweep(as_json: bool) -> None:
    """Remove what retention and quotas say now, and give its room back to the disk (the operator)."""
    found = _ask("POST", "/v1/sweep")
    _show(found, as_json, tuple(found), [tuple(found.values())])


@fleet.command()
@click.argument("name", type=click.Choice(["runs", "verdicts", "findings", "culprits", "run_hosts"]))
@click.option("--days", default=31.0, show_default=True, help="How far back.")
@click.option("--out", type=click.Path(path_type=Path), help="The file; default NAME.parquet.")
def table(name: str, days: float, out: Path | None) -> None:
    """Write a table as a Parquet file, for DuckDB and the like; docs/fleet.md describes its columns."""
    file = out or Path(f"{name}.parquet")
    check_target(file, "--out")
    write_result(file, _call("GET", f"/v1/tables/{name}", {"days": str(days)}), "--out")


@fleet.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, file_okay=False))
def send(runs: tuple[Path, ...]) -> None:
    """Hand over what run directories could not: RUNS are run directories, or directories of them."""
    from eroica.fleet.reporting.reporter import hand_over
    from eroica.fleet.reporting.spool import has_spool

    settings = _settings()
    found = [
        run for place in runs for run in ([place] if (place / "windows").exists() or has_spool(place) else _runs(place))
    ]
    if not found:
        raise InputError("there is no run directory; name one, as in eroica-report/JOB")
    waiting = 0
    for run in found:
        waiting += not hand_over(run, settings, by_hand=True)
    if waiting:
        raise UnavailableError(
            f"{waiting} of {len(found)} runs could not be handed over; they are kept, and fleet/refused in a run "
            "directory says what is never taken, and why"
        )
    say(f"{len(found)} runs handed over")


def _runs(place: Path) -> list[Path]:
    return sorted(path for path in place.iterdir() if (path / "verdict.json").exists() or (path / "windows").is_dir())


# ---------------------------------------------------------------------- asking and showing


def _settings() -> Settings:
    settings = load_settings()
    if not settings.fleet:
        raise UsageError("no service is named; set EROICA_FLEET=https://HOST:PORT and EROICA_FLEET_TOKEN")
    return settings


def _ask(method: str, path: str, query: dict[str, str] | None = None, body: Any = None) -> Any:
    """The answer of the service as a record; errors as in `_call`."""
    content = _call(method, path, query, body)
    try:
        return msgspec.json.decode(content) if content else None
    except ValueError:
        raise InputError(f"{_settings().fleet} is no fleet of ours: its answer is no JSON") from None


def _call(method: str, path: str, query: dict[str, str] | None = None, body: Any = None) -> bytes:
    """The answer of the service.

    Raises:
        InputError: It refuses.
        UnavailableError: It cannot be reached.
    """
    import httpx
    from eroica.fleet.reporting.sending import client_for

    settings = _settings()
    if not settings.fleet_token:
        raise UsageError("no token is set; set EROICA_FLEET_TOKEN to one that the service made (eroica fleet token)")
    content = None if body is None else msgspec.json.encode(body)
    try:
        with client_for(settings, _TIMEOUT_S) as client:
            answer = client.request(method, path, params=query or {}, content=content)
    except httpx.HTTPError as error:
        raise UnavailableError(f"{settings.fleet} cannot be reached: {type(error).__name__}") from None
    if not answer.is_success:
        raise InputError(f"the fleet answers {answer.status_code}: {clean(_said(answer.content), 300)}")
    return answer.content


def _said(content: bytes) -> str:
    """The service's own words of why not."""
    try:
        return str(msgspec.json.decode(content, type=dict[str, Any]).get("error", ""))
    except ValueError:
        return ""


def _show(record: Any, as_json: bool, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    if as_json:
        with on_terminal():
            click.echo(msgspec.json.format(msgspec.json.encode(record), indent=2))
        return
    from rich.table import Table

    if not rows:
        say("none")
        return
    table = Table(*columns, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(clean(str(cell)) for cell in row))
    with on_terminal():
        make_console().print(table, markup=False)


def _chance(value: float) -> str:
    return percent(value) if value >= 0.01 else f"{value:.0e}"


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _ago(at: float | None) -> str:
    if not at:
        return ""
    seconds = max(0.0, time.time() - at)
    for size, word in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {word} ago"
    return f"{seconds:.0f} s ago"
