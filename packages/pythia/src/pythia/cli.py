"""The command line."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from pythia import simulation as sim
from pythia.errors import BadConfig, PythiaError
from pythia.profile import SHARED, Profiles, read_log
from pythia.records import read_yaml
from pythia.settings import read_settings
from pythia.workflow import Plan, arrivals, read_workflow

F = TypeVar("F", bound=Callable[..., Any])
POSITIVE = click.FloatRange(0, min_open=True)


class _Group(click.Group):
    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except PythiaError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=_Group)
@click.version_option(package_name="pythia")
def main() -> None:
    """Serve predictable agent workflows sooner."""


@main.command()
@click.option(
    "--config", type=click.Path(path_type=Path), required=True, help="YAML file; docs/configuration.md lists its keys."
)
@click.option("--dry-run", is_flag=True, help="Serve as without Pythia, and say what it would have done.")
@click.option("--log-level", default="info", type=click.Choice(["debug", "info", "warning"]))
def serve(config: Path, dry_run: bool, log_level: str) -> None:
    """Run the gateway."""
    import uvicorn

    from pythia.gateway import Gateway, app
    from pythia.page import live

    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(message)s")
    settings = read_settings(config)
    if dry_run:
        settings = msgspec.structs.replace(settings, dry_run=True)
    host, _, port = settings.listen.rpartition(":")
    gateway = Gateway(settings)
    gc.freeze()  # the collector need not walk through all modules while requests wait
    uvicorn.run(
        app(gateway, live(gateway)), host=host.strip("[]"), port=int(port), log_level="warning", access_log=False,
        server_header=False, date_header=False, timeout_keep_alive=60, timeout_graceful_shutdown=30,
    )  # fmt: skip


@main.group()
def profile() -> None:
    """What was learned about workflows."""


@profile.command("build")
@click.argument("log", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), default=Path("pythia-profiles.bin"), show_default=True)
def build(log: Path, output: Path) -> None:
    """Learn from a LOG of completed requests and add it to a profile file."""
    profiles = Profiles.load(output)
    runs = profiles.learn_log(read_log(log))
    profiles.save(output)
    click.echo(f"{runs} runs learned; {output} holds {len(profiles.known)} workflow types")


@profile.command("show")
@click.argument("file", type=click.Path(path_type=Path), default=Path("pythia-profiles.bin"))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--svg", type=click.Path(path_type=Path), help="Write a drawing of each automaton to this folder.")
@click.option("--alpha", default=0.01, show_default=True, help="Miss probability of the bounds.")
def show(file: Path, as_json: bool, svg: Path | None, alpha: float) -> None:
    """Print each workflow's expression, lengths, bounds and coverage."""
    if not file.exists():
        raise BadConfig(f"{file} does not exist; `pythia profile build LOG -o {file}` makes it")
    known = Profiles.load(file).known
    found = [describe(key, one, alpha) for key, one in known.items()]
    if svg is not None:
        from pythia.page import automaton_svg

        svg.mkdir(parents=True, exist_ok=True)
        for i, learned in enumerate(known.values()):
            (svg / f"{i}.svg").write_text(automaton_svg(learned), encoding="utf-8")
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    for one in found:
        click.echo("\n".join(_lines(one)))


def _lines(one: dict[str, Any]) -> Iterator[str]:
    tenant = f", tenant {one['tenant']}" if one["tenant"] not in ("", SHARED) else ""
    yield f"{one['workflow_type_id']}  ({one['runs']} runs{tenant})"
    yield f"  path      {one['path'] or 'too few runs'}"
    yield f"  accepted  {one['accepted']}   trusted {one['trusted']}   changes {one['changes']} {one['last_change']}"
    for role, r in one["roles"].items():
        bound = "max_tokens" if r["bound"] is None else r["bound"]
        sources = ", ".join(f"{k} {v:.0%}" for k, v in list(r["sources"].items())[:3])
        numbers = f"mean {r['mean']:>8.1f}  bound {bound!s:>10}  n {r['answers']:>6}  constant {r['constant']:.0%}"
        yield f"  {role:<16} {numbers}  {sources}"


def describe(key: tuple[str, str], one: Any, alpha: float) -> dict[str, Any]:
    """Return one profile as `pythia profile show --json` prints it."""
    roles = {}
    for role, lengths in sorted(one.lengths.items()):
        template = one.templates.get(role)
        roles[role] = {
            "answers": lengths.seen, "mean": round(lengths.mean, 1), "bound": lengths.bound(alpha),
            "constant": round(template.constant_share, 3) if template else 0.0, "model": one.models.get(role, ""),
            "sources": template.describe() if template else {},
        }  # fmt: skip
    accepted = f"{one.matched} of {one.looked} later runs" if one.looked else "not yet known"
    return {
        "tenant": key[0], "workflow_type_id": key[1], "runs": one.runs, "path": one.text, "accepted": accepted,
        "coverage": one.matched / one.looked if one.looked else None, "trusted": one.trust.earned,
        "trust": msgspec.to_builtins(one.trust), "changes": one.changes, "last_change": one.change,
        "alpha": alpha, "roles": roles,
        "edges": [[a, b, count] for (a, b), count in sorted(one.automaton.role_edges().items())],
    }  # fmt: skip


def _sending(command: F) -> F:
    for option in (
        click.option("--url", required=True, help="Gateway or engine, e.g. http://127.0.0.1:8080."),
        click.option("--model", default="", help="Model name in the requests."),
        click.option("--key", envvar="OPENAI_API_KEY", default="", help="API key."),
    ):
        command = option(command)
    return command


@main.command()
@click.argument("workflows", nargs=-1, required=True)
@click.option("--rate", type=POSITIVE, required=True, help="Runs per second.")
@click.option("--seconds", type=POSITIVE, required=True, help="How long new runs arrive.")
@click.option("--seed", default=0, show_default=True)
@_sending
def run(workflows: tuple[str, ...], rate: float, seconds: float, seed: int, **sending: Any) -> None:
    """Run WORKFLOWS (YAML files or shipped names, each with =SHARE if wanted) as real agents."""
    _drive(arrivals(mixture(workflows), rate, seconds, seed), **sending)


@main.command()
@click.argument("recording", type=click.Path(path_type=Path))
@_sending
def replay(recording: Path, **sending: Any) -> None:
    """Replay a RECORDING: TraceLab rounds (JSONL), or a log that `pythia serve` wrote."""
    from pythia.recorded import read_recording

    _drive(read_recording(recording), **sending)


def mixture(names: tuple[str, ...]) -> list[tuple[Any, float]]:
    """Return workflows with their shares from NAME=SHARE."""
    found = []
    for text in names:
        name, _, share = text.partition("=")
        try:
            weight = float(share or 1)
        except ValueError:
            weight = -1.0
        if weight < 0:
            raise BadConfig(f"{text!r}: the share must be a number, 0 or more, as in coding=0.3")
        found.append((read_workflow(name), weight))
    if not sum(weight for _, weight in found):
        raise BadConfig("all shares are 0; give at least one workflow a share")
    return found


def _drive(plans: list[Plan], url: str, model: str, key: str) -> None:
    from pythia.agents import drive

    outcome = asyncio.run(drive(plans, url.rstrip("/"), model, key=key))
    times = f"completion mean {outcome.mean_s:.2f} s, P95 {outcome.p95_s:.2f} s"
    click.echo(f"{len(outcome.jct_s)} runs, {outcome.failed} failed; {times}")
    click.echo(f"first token of later steps {outcome.later_ttft_s():.3f} s; sender late by {outcome.late_s:.3f} s")
    errors = sorted({r.error for r in outcome.records if r.error})
    for error in errors[:3]:
        click.echo(f"error: {error}", err=True)
    if not outcome.jct_s.size:
        sys.exit(1)


@main.command()
@click.argument("workflows", nargs=-1, required=True)
@click.option("--load", type=POSITIVE, default=0.97, show_default=True, help="Share of what the fleet can serve.")
@click.option("--seconds", type=POSITIVE, default=300.0, show_default=True)
@click.option("--replicas", type=click.IntRange(1), default=8, show_default=True)
@click.option("--engine", type=click.Path(path_type=Path), help="Engine description (YAML).")
@click.option("--policy", "names", multiple=True, type=click.Choice(list(sim.POLICIES)), help="Default: all.")
@click.option("--train", type=int, default=400, show_default=True, help="Runs that the profiles have seen before.")
@click.option("--seed", default=0, show_default=True)
def simulate(
    workflows: tuple[str, ...], names: tuple[str, ...], load: float, seconds: float, replicas: int, engine: Path | None,
    train: int, seed: int,
) -> None:  # fmt: skip
    """Compare policies on a simulated fleet."""
    speed = read_yaml(engine, sim.Engine) if engine else sim.Engine()
    mixed = mixture(workflows)
    profiles = sim.trained(mixed, speed, train)
    plans = sim.loaded(mixed, speed, replicas, load, seconds, seed)
    click.echo(f"{len(plans)} runs, load {load:g}, {replicas} replicas of {speed.slots} slots")
    click.echo(f"{'policy':<14}  mean s   P95 s  mean ×  P95 ×  hits  TTFT 2+  preempted  first waits")
    base: sim.Result | None = None
    for name in names or sim.POLICIES:
        r = sim.simulate(plans, sim.POLICIES[name], speed, profiles=profiles.copy(), models={"": replicas})
        base = base or r
        gains = f"{base.mean_s / r.mean_s:>8.2f}{base.p95_s / r.p95_s:>7.2f}"
        rest = f"{r.hit_share:>6.2f}{r.later_ttft_s():>9.3f}{r.preemptions:>11}{max(r.waits_first_s, default=0):>13.1f}"
        click.echo(f"{name:<14}{r.mean_s:>8.2f}{r.p95_s:>8.2f}{gains}{rest}")


@main.command()
@click.argument("model")
@click.option("--port", type=int, required=True)
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--slots", default=4, show_default=True)
@click.option("--kv-tokens", default=8192, show_default=True)
@click.option("--batch-tokens", default=256, show_default=True)
@click.option("--tiny", is_flag=True, help="Write a small model of random weights to the folder MODEL first.")
def engine(model: str, port: int, host: str, slots: int, kv_tokens: int, batch_tokens: int, tiny: bool) -> None:
    """Serve MODEL with transformers' continuous batching, with priorities and hints."""
    import uvicorn

    from pythia.engine import Server, make_model

    if tiny and not (Path(model) / "config.json").exists():
        make_model(Path(model))
    server = Server(model, slots=slots, kv_tokens=kv_tokens, batch_tokens=batch_tokens)
    uvicorn.run(server.app(), host=host, port=port, log_level="warning", access_log=False, timeout_graceful_shutdown=5)


if __name__ == "__main__":
    main()
