"""The `cora` command."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import click
import msgspec
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, Metric

from cora import calibrate as calibration
from cora import engine
from cora.build import compile_tiers, load_fast
from cora.errors import BadInput, CoraError
from cora.files import read, require_directory, write
from cora.functions import FUNCTIONS, defaults, load
from cora.machine import Limits, load_costs, load_limits, shipped
from cora.measure import network_costs, run_phases
from cora.model import Choice, placement_of
from cora.namespaces import Testbed, check_device
from cora.placement import Placement
from cora.plan import Problem, simple_plans
from cora.planfile import Answer, PlanFile, page, read_plan, solve, steps_in
from cora.planfile import explain as in_words
from cora.profile import Profile, make_profile
from cora.program import Program
from cora.traffic import Shape, capture, make_traffic, write_pcap


class _Main(click.Group):
    """Errors of this package end a command with one line."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except CoraError as error:
            raise click.ClickException(str(error)) from error


FILE = click.Path(path_type=Path)
POSITIVE = click.FloatRange(min=0, min_open=True)
Opened = tuple[PlanFile, Program, Placement]
OPENED: dict[str, Any] = {"type": FILE, "callback": lambda _, __, path: read_plan(path) if path else None}
Option = Callable[[Any], Any]


def _file(flag: str, words: str, reader: Callable[[Path], Any], missing: Callable[[], Any] = lambda: None) -> Option:
    """Return an option whose file is read; `missing` gives the value where no file is named."""
    return click.option(flag, type=FILE, help=words, callback=lambda _, __, path: reader(path) if path else missing())


def _out(default: str) -> Option:
    return click.option("--out", type=FILE, default=Path(default), show_default=True)


SETTINGS = _file(
    "--settings",
    "JSON with the function's settings; others keep defaults.",
    lambda path: read(path, dict[str, Any], "settings are a JSON object; `cora functions` shows them"),
    dict,
)
JSON = click.option("--json", "as_json", is_flag=True, help="For programs.")
PAGE = click.option("--page", "page_file", type=FILE, help="Also write the plan page (HTML).")
#: Options that say on what machine and for what traffic a plan is made; `_answer` takes them.
PROBLEM = (
    SETTINGS,
    _file(
        "--profile",
        "From `cora profile`; default: made traffic, Zipf 1.",
        lambda path: read(path, Profile, "make it with `cora profile`"),
    ),
    _file(
        "--costs",
        "Measured parameter file; default: one that comes with cora.",
        load_costs,
        lambda: load_costs(shipped("reference-costs")),
    ),
    _file("--limits", "Limits of the fast tier; `agilio-like` comes with cora.", load_limits, Limits),
    click.option("--memory", type=click.IntRange(min=0), help="Bytes for tables in the fast tier."),
    click.option("--engine", type=click.Choice(["exact", "exhaustive", "greedy"]), default="exact", show_default=True),
    click.option("--rate", "rate_per_s", type=click.FloatRange(min=0), default=0.0, help="Packets a second to hold."),
    click.option("--cores", nargs=2, type=POSITIVE, default=(1.0, 1.0), show_default=True, help="Fast, slow."),
    click.option("--home", "homes", multiple=True, help="Settle a table: TABLE=fast|slow|both|split[:ENTRIES]."),
)


def _with(options: tuple[Option, ...]) -> Option:
    return lambda command: reduce(lambda made, option: option(made), reversed(options), command)


@click.group(cls=_Main)
@click.version_option(package_name="cora")
def main() -> None:
    """Split stateful packet programs between XDP and user space."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that namespaces and files go, too


def _answer(
    function: str,
    settings: dict[str, Any],
    profile: Profile | None,
    limits: Limits,
    memory: int | None,
    engine: str,
    **more: Any,
) -> Answer:
    """Plan a function by the options of `PROBLEM`."""
    program = load(function, settings)
    if memory is not None:
        limits = msgspec.structs.replace(limits, bytes=memory)
    profile = profile or make_profile(program, make_traffic(function, Shape()))
    if profile.function != program.name or max(profile.visits, default=0) >= len(program.steps):
        raise BadInput(f"the profile is one of {profile.function} with other settings; profile {program.name} again")
    return solve(Problem(program, profile, limits=limits, **more), engine)


@main.command()
def functions() -> None:
    """List the functions that come with cora, with their settings."""
    for name, make in FUNCTIONS.items():
        summary = (make.__doc__ or "").partition("\n")[0]
        click.echo(f"{name:9} {summary} {json.dumps(defaults(name))}")


@main.command()
@_out("costs.json")
@click.option("--network", is_flag=True, help="Also measure real devices, in namespaces.")
def calibrate(out: Path, network: bool) -> None:
    """Measure what operations cost on this machine; about two minutes."""
    require_directory(out)
    costs = calibration.calibrate(lambda text: click.echo(text, err=True))
    if network:
        click.echo("packets through real devices", err=True)
        costs = msgspec.structs.replace(costs, network=network_costs(costs))
    write(out, costs)
    click.echo(f"{out}: measured {costs.when} on {costs.where}, spread {costs.noise:.1%}")


@main.command()
@click.argument("function")
@click.argument("file", type=FILE, required=False)
@click.option("--inside", default="10.0.0.0/8", show_default=True, help="Sources that come in by device 0.")
@click.option("--live", metavar="DEVICE", help="Sample packets of a device instead of reading a file; needs root.")
@click.option("--seconds", type=POSITIVE, default=5.0, show_default=True, help="How long to sample.")
@_out("profile.json")
@SETTINGS
def profile(
    function: str, file: Path | None, inside: str, live: str | None, seconds: float, out: Path, settings: dict[str, Any]
) -> None:
    """Profile FUNCTION on a pcap or pcapng FILE, or on a live sample."""
    source = file or live
    if not source or (file and live):
        raise BadInput("give a capture file, or --live DEVICE")
    program = load(function, settings)
    found = make_profile(program, capture(source, inside, seconds))
    write(out, found)
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
@click.option("--skew", type=click.FloatRange(min=0), default=1.0, show_default=True, help="Zipf exponent.")
@click.option("--keys", type=click.IntRange(min=1), default=4096, show_default=True)
@click.option("--packets", type=click.IntRange(min=1), default=20000, show_default=True)
@click.option("--burst", type=click.FloatRange(min=1), default=1.0, show_default=True, help="Mean packets in a burst.")
@click.option("--seed", default=1, show_default=True)
@_out("traffic.pcap")
def traffic(function: str, out: Path, **shape: Any) -> None:
    """Make a capture file that exercises FUNCTION."""
    load(function)
    write_pcap(out, make_traffic(function, Shape(**shape)))
    click.echo(f"{out}: " + ", ".join(f"{name} {value:,}" for name, value in shape.items()))


def _show(function: str, answer: Answer, page_file: Path | None, as_json: Any = None) -> None:
    if page_file:
        write(page_file, page(function, answer))
    click.echo(in_words(answer) if as_json is None else msgspec.json.encode(as_json))


@main.command()
@click.argument("function")
@_out("plan.json")
@PAGE
@JSON
@_with(PROBLEM)
def plan(function: str, out: Path, page_file: Path | None, as_json: bool, **problem: Any) -> None:
    """Choose where FUNCTION's tables live; write the plan with every option's costs and bytes."""
    answer = _answer(function, **problem)
    made = answer.to_file(function, problem["settings"])
    write(out, made)
    _show(function, answer, page_file, made if as_json else None)
    click.echo(f"{out}: {made.engine} search, {made.search_s * 1000:.1f} ms", err=True)


@main.command()
@click.argument("plan_file", **OPENED)
@PAGE
@JSON
@_with(PROBLEM[2:5])
def explain(plan_file: Opened, page_file: Path | None, as_json: bool, **machine: Any) -> None:
    """Say what a plan costs, what limits it, and which change would help most."""
    data, _, placement = plan_file
    if data.profile is None:
        raise BadInput("the plan has no profile; make it with `cora plan`")
    free = _answer(data.function, data.settings, data.profile, engine="greedy", **machine)
    chosen = {name: Choice(home, placement.fast_entries.get(name, 0)) for name, home in placement.homes.items()}
    for name, choice in chosen.items():
        if choice not in free.problem.instance.choices[name]:
            raise BadInput(f"the limits leave no {choice.home} home for table {name}; plan again")
    kept = replace(free, plan=free.plan._replace(chosen=chosen))
    change = kept.next_change()
    words = {
        "bottleneck": kept.prediction.bottleneck,
        "steps": steps_in(kept),
        "next_change": change and dict(zip(("what", "saved_ns", "more_fast_bytes"), change, strict=True)),
    }
    _show(data.function, kept, page_file, words if as_json else None)


@main.command()
@click.argument("plan_file", **OPENED)
@_out("build")
@click.option("--load", "try_load", is_flag=True, help="Let the kernel's verifier check the fast tier; needs root.")
def build(plan_file: Opened, out: Path, try_load: bool) -> None:
    """Write and compile the C of both tiers in the directory OUT."""
    made = compile_tiers(*plan_file[1:], out)
    files = "fast.bpf.c, fast.o, slow.c, slow.so"
    click.echo(f"{out}/{files}; a packet that crosses carries {made.hand_bytes} bytes in front")
    if try_load:
        load_fast(made).close()
        click.echo("the kernel accepts the fast tier")


@main.command()
@click.argument("function")
@click.option("--dev", "devices", multiple=True, help="Twice: inside or client side, then outside or server side.")
@click.option("--plan", "plan_file", **OPENED, help="From `cora plan`; default: a plan for made traffic.")
@click.option("--state", type=FILE, help="File for counters and table entries (JSON).")
@click.option("--device-is-mine", is_flag=True, help="Accept devices that cora did not make.")
@click.option("--adapt/--no-adapt", default=True, show_default=True, help="Move keys of split tables with the traffic.")
@click.option("--seconds", type=click.FloatRange(min=0), default=0.0, help="Stop after this time; 0: until a signal.")
@click.option("--metrics", type=click.IntRange(1, 65535), help="Port for Prometheus on 127.0.0.1.")
@click.option("--dry-run", is_flag=True, help="Plan, build and check devices, but attach nothing.")
@_with(PROBLEM)
def run(
    function: str,
    devices: tuple[str, ...],
    plan_file: Opened | None,
    settings: dict[str, Any],
    metrics: int | None,
    dry_run: bool,
    device_is_mine: bool,
    **more: Any,
) -> None:
    """Run FUNCTION between two devices until Ctrl-C; prints `ready` when packets are processed."""
    if len(devices) != 2 or devices[0] == devices[1]:
        raise BadInput("give --dev twice: the inside or client device, then the outside or server device")
    pair = (check_device(devices[0], device_is_mine), check_device(devices[1], device_is_mine))
    options = engine.Options(**{name: more.pop(name) for name in ("state", "adapt", "seconds")})
    if options.state:
        require_directory(options.state)
    if plan_file:
        data, program, placement = plan_file
        if data.function != function or (settings and data.settings != settings):
            raise BadInput(f"the plan is one for {data.function} with other settings; plan again")
        settings = data.settings
    else:
        answer = _answer(function, settings, **more)
        program, placement = answer.problem.program, placement_of(answer.plan.chosen)
    options.resolve = engine.addresses_in({**defaults(function), **settings})
    click.echo(f"{program.name}: {placement.label()}", err=True)
    if dry_run:
        with tempfile.TemporaryDirectory() as scratch:
            load_fast(compile_tiers(program, placement, Path(scratch))).close()
        click.echo("the kernel accepts the fast tier; nothing was attached")
        return
    if metrics:
        options.report = _Counters(metrics).newest.update
    engine.run(program, placement, pair, options)


class _Counters:
    """Turns the newest counters of a run into metrics for Prometheus."""

    def __init__(self, port: int) -> None:
        self.newest: dict[str, Any] = {}
        registry = CollectorRegistry()
        registry.register(self)
        start_http_server(port, "127.0.0.1", registry)

    def collect(self) -> Iterator[Metric]:
        packets = CounterMetricFamily(
            "cora_packets", "Packets by tier and what became of them.", labels=("tier", "what")
        )
        counts = [(tier, what, n) for tier in ("fast", "slow") for what, n in self.newest.get(tier, {}).items()]
        for tier, what, count in counts:
            if what != "bytes":
                packets.add_metric((tier, what), count)
        yield packets
        yield CounterMetricFamily("cora_bytes", "Bytes that came in.", self.newest.get("fast", {}).get("bytes", 0))
        yield CounterMetricFamily("cora_replans", "Re-plans.", self.newest.get("replans", 0))
        yield CounterMetricFamily("cora_moved_keys", "Keys moved between tiers.", self.newest.get("moved", 0))


@main.command()
@click.argument("state", type=FILE)
@click.option("--interval", type=POSITIVE, default=1.0, show_default=True, help="Seconds between lines.")
@click.option("--count", default=0, help="Stop after this many lines; 0: until Ctrl-C.")
def watch(state: Path, interval: float, count: int) -> None:
    """Show rates of a running `cora run --state FILE`, a line each second."""
    signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
    before: dict[str, Any] = {}
    click.echo(f"{'packets/s':>12} {'crossing':>9} {'drops/s':>10} {'re-plans':>9} {'keys moved':>11}")
    while True:
        data = read(state, dict[str, Any], "the state file of `cora run --state` is wanted")
        if not {"time_unix_s", "counters"} <= set(data):
            raise BadInput(f"{state} is no state file; `cora run --state FILE` writes one")
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
@click.option("--command", required=True, help="Shell command to run between the devices `in` and `out`.")
def testbed(command: str) -> None:
    """Make three network namespaces, client, middle and server, for a command in the middle one. Needs root."""
    with Testbed() as bed:
        sys.exit(subprocess.run(bed.command("middle", ["sh", "-c", command]), check=False).returncode)


@main.command()
@click.argument("plan_file", **OPENED)
@click.option("--seconds", type=POSITIVE, default=5.0, show_default=True)
@click.option("--rate", type=POSITIVE, default=50_000.0, show_default=True, help="Packets a second.")
@click.option("--skew", type=click.FloatRange(min=0), default=1.0, show_default=True)
@JSON
def bench(plan_file: Opened, seconds: float, rate: float, skew: float, as_json: bool) -> None:
    """Run a plan in namespaces under made traffic; print measured CPU beside the prediction. Needs root."""
    data, _, placement = plan_file
    found = run_phases(data.function, data.settings, placement, [Shape(skew=skew, rate_per_s=rate)], seconds)
    found |= found.pop("phases")[0]
    predicted = data.prediction
    if as_json:
        click.echo(msgspec.json.encode({**found, "predicted": predicted}))
        return
    click.echo(
        f"{found['received_packets']:,} of {found['sent_packets']:,} packets came through at "
        f"{found['rate_packets_per_s']:,.0f} a second; {found['crossing_share']:.1%} crossed; "
        f"slow tier {found['slow_cpu_ns_per_packet']:.0f} ns of CPU a packet"
    )
    if predicted:
        click.echo(
            f"predicted: {predicted.crossing_share:.1%}, {predicted.slow_cpu_ns:.0f} ns at the profile's traffic"
        )


@main.command()
@click.option("--page", "page_file", type=FILE, default=Path("cora-demo.html"), show_default=True)
def demo(page_file: Path) -> None:
    """Calibrate, plan a load balancer, run it, shift the traffic, compare with the prediction; under two minutes."""
    begin = time.monotonic()
    click.echo("Calibrating on this machine ...")
    costs = msgspec.structs.replace(calibration.calibrate(quick=True), network={})
    shape = Shape(keys=4096, skew=1.2, packets=20_000, rate_per_s=15_000.0, back=0.0)
    memory = 64 * 1024  # bytes that the demo grants the fast tier, so that only heavy connections fit
    program = load("balancer")
    profile = make_profile(program, make_traffic("balancer", shape))
    answer = solve(Problem(program, profile, costs, Limits(bytes=memory)))
    milliseconds = answer.plan.seconds * 1000
    click.echo(f"\nPlan for Zipf {shape.skew} traffic, {memory:,} bytes in the fast tier ({milliseconds:.0f} ms):")
    click.echo(in_words(answer))
    write(page_file, page("balancer", answer))
    click.echo("\nRunning all slow, then the plan; the heavy connections change after each phase ...")
    slow = simple_plans(program, answer.problem.instance)["all slow"]
    found = {}
    for name, chosen, rotations in (("all slow", slow, [0]), ("plan", answer.plan.chosen, [0, 1000, 2500])):
        shapes = [replace(shape, rotate=rotation) for rotation in rotations]
        run = found[name] = run_phases("balancer", {}, placement_of(chosen), shapes, 3.0)
        for rotation, one in zip(rotations, run["phases"], strict=True):
            click.echo(
                f"  {name:8} heavy keys from {rotation:4}: {one['crossing_share']:6.1%} cross, slow tier "
                f"{one['slow_cpu_ns_per_packet']:6.0f} ns of CPU a packet, {one['replans']} re-plans so far"
            )
        counted = sum(row["value"]["packets"] for row in run["state"]["tables"]["connections"])
        click.echo(
            f"  {run['sent_packets']:,} packets sent, {run['received_packets']:,} came in, "
            f"{run['lost_between_tiers']:,} found the slow tier's queue full, {counted:,} counted in exact state"
        )
    first, before = found["plan"]["phases"][0], found["all slow"]["phases"][0]["slow_cpu_ns_per_packet"]
    click.echo(
        f"\nFirst phase: {first['crossing_share']:.1%} of the packets crossed "
        f"({answer.prediction.crossing_share:.1%} predicted); the slow tier took "
        f"{first['slow_cpu_ns_per_packet']:.0f} ns of CPU a packet, "
        f"{1 - first['slow_cpu_ns_per_packet'] / before:.0%} less than all slow."
    )
    click.echo(f"Plan page: {page_file}. The demo took {time.monotonic() - begin:.0f} s.")


if __name__ == "__main__":
    main()
