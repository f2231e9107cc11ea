"""The `cora` command."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from cora.errors import BadInput, CoraError


class _Main(click.Group):
    """Errors of this package end a command with one line."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except CoraError as error:
            raise click.ClickException(str(error)) from error


FILE = click.Path(path_type=Path)


def _options(*names: str) -> Callable[[Any], Any]:
    """Add options that several commands share."""
    known = {
        "settings": click.option(
            "--settings", type=FILE, help="JSON with the function's settings; others keep defaults."
        ),
        "costs": click.option("--costs", type=FILE, help="Measured parameter file; default: one that comes with cora."),
        "limits": click.option(
            "--limits", type=FILE, help="Limits of the fast tier; `agilio-like` is one that comes with cora."
        ),
        "profile": click.option(
            "--profile", "profile_file", type=FILE, help="From `cora profile`; default: made traffic, Zipf 1."
        ),
        "engine": click.option(
            "--engine", type=click.Choice(["exact", "exhaustive", "greedy"]), default="exact", show_default=True
        ),
        "rate": click.option(
            "--rate", default=0.0, help="Packets a second that both tiers must take; 0: no such limit."
        ),
        "cores": click.option(
            "--cores", nargs=2, type=float, default=(1.0, 1.0), show_default=True, help="Fast, slow."
        ),
        "home": click.option(
            "--home", "homes", multiple=True, help="Settle a table: TABLE=fast|slow|both|split[:ENTRIES]."
        ),
        "memory": click.option(
            "--memory", type=int, help="Bytes for tables in the fast tier; default: that of --limits."
        ),
        "weight": click.option(
            "--weight-fast", default=0.1, show_default=True, help="Weight of a fast ns beside a slow one."
        ),
        "json": click.option("--json", "as_json", is_flag=True, help="For programs."),
    }

    def add(command: Any) -> Any:
        for name in reversed(names):
            command = known[name](command)
        return command

    return add


@click.group(cls=_Main)
@click.version_option(package_name="cora")
def main() -> None:
    """Split stateful packet programs between XDP and user space."""


def _settings(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise BadInput(f"{path} is no JSON: {error}") from error
    if not isinstance(data, dict):
        raise BadInput(f"{path} must hold a JSON object of settings")
    return data


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from error


def _machine(costs: Path | None, limits: Path | None, memory: int | None) -> tuple[Any, Any]:
    from cora.machine import Limits, load_costs, load_limits, shipped

    found = load_costs(costs or shipped("reference-costs"))
    if limits and not limits.exists() and shipped(limits.name).exists():
        limits = shipped(limits.name)
    allowed = load_limits(limits) if limits else Limits()
    return found, replace(allowed, bytes=memory) if memory else allowed


def _profile(name: str, program: Any, path: Path | None) -> Any:
    from cora.profile import make_profile, profile_from_json
    from cora.traffic import Shape, make_traffic

    if path is None:
        return make_profile(program, make_traffic(name, Shape()))
    profile = profile_from_json(_settings(path))
    if profile.function != program.name:
        raise BadInput(f"{path} profiles {profile.function}, not {program.name}")
    return profile


@main.command()
@_options("json")
def functions(as_json: bool) -> None:
    """List the functions that come with cora, with their settings."""
    from cora.functions import FUNCTIONS

    if as_json:
        click.echo(json.dumps({name: one.defaults for name, one in FUNCTIONS.items()}, indent=1))
        return
    for name, one in FUNCTIONS.items():
        click.echo(f"{name:9} {one.summary}: {json.dumps(one.defaults)}")


@main.command()
@click.option("--out", type=FILE, default=Path("costs.json"), show_default=True)
@click.option("--network", is_flag=True, help="Also measure real devices, in namespaces.")
def calibrate(out: Path, network: bool) -> None:
    """Measure what operations cost on this machine; about two minutes."""
    from cora.calibrate import calibrate as measure
    from cora.measure import network_costs

    costs = measure(lambda text: click.echo(text, err=True))
    if network:
        click.echo("packets through real devices", err=True)
        costs = replace(costs, network=network_costs(costs))
    costs.save(out)
    click.echo(f"{out}: measured {costs.when} on {costs.where}, spread {costs.noise:.1%}")


@main.command()
@click.argument("function")
@click.argument("capture", type=FILE, required=False)
@click.option("--inside", default="10.0.0.0/8", show_default=True, help="Sources that come in by device 0.")
@click.option("--live", metavar="DEVICE", help="Sample packets of a device instead of reading a file; needs root.")
@click.option("--seconds", default=5.0, show_default=True, help="How long to sample.")
@click.option("--out", type=FILE, default=Path("profile.json"), show_default=True)
@_options("settings")
def profile(
    function: str, capture: Path | None, inside: str, live: str | None, seconds: float, out: Path, settings: Path | None
) -> None:
    """Profile FUNCTION on a pcap or pcapng file, or on a live sample."""
    from cora.functions import load
    from cora.profile import make_profile, read_capture
    from cora.sample import sample_device

    if bool(capture) == bool(live):
        raise BadInput("give a capture file, or --live DEVICE")
    program = load(function, _settings(settings))
    packets = sample_device(str(live), seconds, inside) if live else read_capture(capture or Path(), inside)
    found = make_profile(program, packets)
    _write(out, json.dumps(found.to_json()) + "\n")
    click.echo(
        f"{out}: {found.packets:,} packets in {found.duration_s:.3f} s ({found.rate_per_s:,.0f}/s), "
        f"mean {found.mean_bytes:.0f} bytes, {found.unsupported} not supported"
    )
    for use in found.uses:
        click.echo(
            f"  step {use.step:3} {program.describe(use.step):22} {use.share:6.1%} of packets, "
            f"{use.hit_share:6.1%} hit, {use.keys:,} keys, working set {use.working_set:,.0f}, Zipf {use.skew:.2f}"
        )


@main.command()
@click.argument("function")
@click.option("--skew", default=1.0, show_default=True)
@click.option("--keys", default=4096, show_default=True)
@click.option("--packets", default=20000, show_default=True)
@click.option("--seed", default=1, show_default=True)
@click.option("--out", type=FILE, default=Path("traffic.pcap"), show_default=True)
def traffic(function: str, skew: float, keys: int, packets: int, seed: int, out: Path) -> None:
    """Make a capture file that exercises FUNCTION."""
    from cora.traffic import Shape, make_traffic, write_pcap

    write_pcap(out, make_traffic(function, Shape(keys=keys, skew=skew, packets=packets, seed=seed)))
    click.echo(f"{out}: {packets:,} packets, {keys:,} keys, Zipf {skew}, seed {seed}")


def _plan(name: str, settings: Path | None, profile_file: Path | None, machine: Any, **options: Any) -> Any:
    from cora.functions import load
    from cora.planfile import make_plan, parse_homes

    given = _settings(settings)
    program = load(name, given)
    found = _profile(name, program, profile_file)
    costs, limits = machine
    only = parse_homes(program, limits, options.pop("homes"))
    return given, program, found, make_plan(program, found, costs, limits, only=only, **options)


@main.command()
@click.argument("function")
@click.option("--out", type=FILE, default=Path("plan.json"), show_default=True)
@click.option("--page", "page_file", type=FILE, help="Also write the plan page (HTML).")
@_options("settings", "profile", "costs", "limits", "memory", "engine", "rate", "cores", "home", "weight", "json")
def plan(  # noqa: PLR0913, PLR0917 - one argument an option
    function: str, out: Path, page_file: Path | None, settings: Path | None, profile_file: Path | None,
    costs: Path | None, limits: Path | None, memory: int | None, engine: str, rate: float,
    cores: tuple[float, float], homes: tuple[str, ...], weight_fast: float, as_json: bool,
) -> None:  # fmt: skip
    """Choose where FUNCTION's tables live; write the plan with every option's costs and bytes."""
    from cora.planfile import plan_to_json
    from cora.report import explain as in_words
    from cora.report import page

    machine = _machine(costs, limits, memory)
    given, program, found, made = _plan(
        function,
        settings,
        profile_file,
        machine,
        homes=homes,
        engine=engine,
        cores=cores,
        rate_per_s=rate,
        weight_fast=weight_fast,
    )
    data = plan_to_json(function, given, program, made, machine[0])
    data["profile"] = found.to_json()
    _write(out, json.dumps(data) + "\n")
    if page_file:
        _write(page_file, page(function, program, found, *machine, made))
    click.echo(json.dumps(data) if as_json else in_words(program, made, machine[0]))
    click.echo(f"{out}: {made[1].engine} search, {made[1].seconds * 1000:.1f} ms", err=True)


@main.command()
@click.argument("plan_file", type=FILE)
@click.option("--page", "page_file", type=FILE, help="Write the plan page (HTML).")
@_options("costs", "limits", "memory", "json")
def explain(
    plan_file: Path, page_file: Path | None, costs: Path | None, limits: Path | None, memory: int | None, as_json: bool
) -> None:
    """Say what a plan costs, what limits it, and which change would help most."""
    from cora.model import Choice
    from cora.planfile import make_plan, next_change, read_plan
    from cora.profile import profile_from_json
    from cora.report import explain as in_words
    from cora.report import page, steps_in

    data, program, placement = read_plan(plan_file)
    machine = _machine(costs, limits, memory)
    found = profile_from_json(data["profile"])
    only = {name: [Choice(home, placement.fast_entries.get(name, 0))] for name, home in placement.homes.items()}
    kept = make_plan(program, found, *machine, only=only)
    free, _, _ = make_plan(program, found, *machine, engine="greedy")
    made = (free, kept[1], kept[2])
    if page_file:
        _write(page_file, page(data["function"], program, found, *machine, made))
    if as_json:
        change = next_change(program, free, kept[1].chosen)
        click.echo(
            json.dumps(
                {
                    "bottleneck": kept[2].bottleneck,
                    "steps": steps_in(program, found, machine[0], kept[1].chosen),
                    "next_change": change
                    and {"what": change[0], "saved_ns_per_packet": change[1], "more_fast_bytes": change[2]},
                }
            )
        )
        return
    click.echo(in_words(program, made, machine[0]))


@main.command()
@click.argument("plan_file", type=FILE)
@click.option("--out", type=FILE, default=Path("build"), show_default=True, help="Directory.")
@click.option("--load", "try_load", is_flag=True, help="Let the kernel's verifier check the fast tier; needs root.")
def build(plan_file: Path, out: Path, try_load: bool) -> None:
    """Write and compile the C of both tiers."""
    from cora.build import compile_tiers, load_fast
    from cora.planfile import read_plan

    _, program, placement = read_plan(plan_file)
    built = compile_tiers(program, placement, out)
    click.echo(
        f"{out}/fast.bpf.c, fast.o, slow.c, slow.so; a packet that crosses carries {built.hand_bytes} bytes in front"
    )
    if try_load:
        load_fast(built).close()
        click.echo("the kernel accepts the fast tier")


@main.command()
@click.argument("function")
@click.option(
    "--dev", "devices", multiple=True, help="Device; twice: inside or client side, then outside or server side."
)
@click.option("--plan", "plan_file", type=FILE, help="From `cora plan`; default: a plan for made traffic.")
@click.option("--state", type=FILE, help="File for counters and table entries (JSON).")
@click.option("--device-is-mine", is_flag=True, help="Accept devices that cora did not make.")
@click.option(
    "--adapt/--no-adapt", default=True, show_default=True, help="Move keys of split tables as traffic shifts."
)
@click.option("--seconds", default=0.0, help="Stop after this time; 0: until a signal.")
@click.option("--metrics", type=int, help="Port for Prometheus on 127.0.0.1.")
@click.option("--dry-run", is_flag=True, help="Plan, build and check devices, but attach nothing.")
@_options("settings", "profile", "costs", "limits", "memory", "engine", "home")
def run(  # noqa: PLR0913, PLR0917 - one argument an option
    function: str, devices: tuple[str, ...], plan_file: Path | None, state: Path | None, device_is_mine: bool,
    adapt: bool, seconds: float, metrics: int | None, dry_run: bool, settings: Path | None,
    profile_file: Path | None, costs: Path | None, limits: Path | None, memory: int | None, engine: str,
    homes: tuple[str, ...],
) -> None:  # fmt: skip
    """Run FUNCTION between two devices until Ctrl-C; prints `ready` when packets are processed."""
    from cora.engine import Options, addresses_in
    from cora.engine import run as run_engine
    from cora.functions import FUNCTIONS
    from cora.metrics import serve
    from cora.model import placement_of
    from cora.planfile import read_plan

    if len(devices) != 2:
        raise BadInput("give --dev twice: the inside or client device, then the outside or server device")
    given = _settings(settings)
    if plan_file:
        data, program, placement = read_plan(plan_file)
        if data["function"] != function or (settings and data["settings"] != given):
            raise BadInput(f"{plan_file} is a plan for {data['function']} with other settings; plan again")
    else:
        _, program, _, made = _plan(
            function, settings, profile_file, _machine(costs, limits, memory), homes=homes, engine=engine
        )
        placement = placement_of(made[1].chosen)
    defaults = FUNCTIONS[function].defaults if function in FUNCTIONS else {}
    report = serve(metrics) if metrics else _warn_once()
    options = Options(
        state, adapt, device_is_mine, seconds=seconds, resolve=addresses_in({**defaults, **given}), report=report
    )
    click.echo(f"{program.name}: {placement.label()}", err=True)
    if dry_run:
        _dry_run(program, placement, devices, device_is_mine)
        return
    run_engine(program, placement, (devices[0], devices[1]), options)


def _warn_once() -> Callable[[dict[str, Any]], None]:
    said: set[str] = set()

    def report(counts: dict[str, Any]) -> None:
        if (warning := counts.get("warning", "")) and warning not in said:
            said.add(warning)
            click.echo(f"warning: {warning}", err=True)

    return report


def _dry_run(program: Any, placement: Any, devices: tuple[str, ...], device_is_mine: bool) -> None:
    import tempfile

    from cora.build import compile_tiers, load_fast
    from cora.namespaces import check_device

    for name in devices:
        device = check_device(name, device_is_mine)
        click.echo(f"{name}: {device.queues} queues, {'routes' if device.addressed else 'bridges'}")
    with tempfile.TemporaryDirectory() as scratch:
        load_fast(compile_tiers(program, placement, Path(scratch))).close()
    click.echo("the kernel accepts the fast tier; nothing was attached")


@main.command()
@click.argument("state", type=FILE)
@click.option("--interval", default=1.0, show_default=True, help="Seconds between lines.")
@click.option("--count", default=0, help="Stop after this many lines; 0: until Ctrl-C.")
def watch(state: Path, interval: float, count: int) -> None:
    """Show rates of a running `cora run --state FILE`, a line each second."""
    signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
    before: dict[str, Any] = {}
    click.echo(f"{'packets/s':>12} {'crossing':>9} {'drops/s':>10} {'re-plans':>9} {'keys moved':>11}")
    while True:
        data = _settings(state)
        if before and data["time_unix_s"] > before["time_unix_s"]:
            seconds = data["time_unix_s"] - before["time_unix_s"]
            old, new = before["counters"], data["counters"]
            packets = new["fast"]["packets"] - old["fast"]["packets"]
            crossed = new["fast"]["crossed"] - old["fast"]["crossed"]
            drops = sum(new[tier]["dropped"] - old[tier]["dropped"] for tier in ("fast", "slow"))
            click.echo(
                f"{packets / seconds:12,.0f} {crossed / packets if packets else 0:9.1%} {drops / seconds:10,.0f} "
                f"{new['replans']:9} {new['moved']:11}"
            )
            count -= 1
            if count == 0:
                return
        before = data
        time.sleep(interval)


@main.command()
@click.option(
    "--command", default="", help="Run this shell command between the devices `in` and `out`, instead of waiting."
)
def testbed(command: str) -> None:
    """Make three network namespaces: client, middle (devices `in` and `out`), server. Needs root."""
    from cora.namespaces import Testbed

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with Testbed() as bed:
        if command:
            sys.exit(subprocess.run(bed.command("middle", ["sh", "-c", command]), check=False).returncode)
        for place in ("client", "middle", "server"):
            click.echo(f"{place:7} {' '.join(bed.command(place, ['COMMAND']))}")
        click.echo("Ctrl-C takes it down.")
        try:
            signal.pause()
        except KeyboardInterrupt:
            return


@main.command()
@click.argument("plan_file", type=FILE)
@click.option("--seconds", default=5.0, show_default=True)
@click.option("--rate", default=50_000.0, show_default=True, help="Packets a second.")
@click.option("--skew", default=1.0, show_default=True)
@_options("json")
def bench(plan_file: Path, seconds: float, rate: float, skew: float, as_json: bool) -> None:
    """Run a plan in namespaces under made traffic; print measured CPU beside the prediction. Needs root."""
    from cora.measure import bench_plan
    from cora.planfile import read_plan
    from cora.traffic import Shape

    data, program, placement = read_plan(plan_file)
    found = bench_plan(
        data["function"], data["settings"], program, placement, Shape(skew=skew, rate_per_s=rate), seconds
    )
    found["predicted"] = data["prediction"]
    if as_json:
        click.echo(json.dumps(found))
        return
    click.echo(
        f"{found['received_packets']:,} of {found['sent_packets']:,} packets came through "
        f"at {found['rate_packets_per_s']:,.0f} a second; "
        f"{found['crossing_share']:.1%} crossed ({data['prediction']['crossing_share']:.1%} predicted)"
    )
    click.echo(
        f"slow tier {found['slow_cpu_ns_per_packet']:.0f} ns of CPU a packet "
        f"({data['prediction']['slow_cpu_ns_per_packet']:.0f} predicted)"
    )


@main.command()
@click.option("--page", "page_file", type=FILE, default=Path("cora-demo.html"), show_default=True)
def demo(page_file: Path) -> None:
    """Calibrate, plan a load balancer, run it, shift the traffic, compare with the prediction; under two minutes."""
    from cora.demo import run_demo

    run_demo(page_file, click.echo)


if __name__ == "__main__":
    main()
