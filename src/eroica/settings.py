"""Every tunable of Eroica, with unit, default and source. Standard library only.

A value comes from, first wins: a command's flag or a keyword of `eroica.watch`; the variable `EROICA_<NAME>`; the file
`eroica.toml` (where the job was started, or `EROICA_CONFIG`); the default below. What a setting may be stands beside it
and is checked here. `docs/settings.md` is made from this file.
"""

from __future__ import annotations

import math
import os
import stat
import sys
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar

from eroica.errors import UsageError

#: Where a job's settings file is: a path, or empty for none. Whoever starts the job sets it for all its processes.
CONFIG = "EROICA_CONFIG"


@dataclass(frozen=True)
class Numbers:
    """Numbers from `least` to `most`, both included; never NaN or infinity."""

    least: float
    most: float = math.inf

    def permits(self, number: float) -> bool:
        """Return whether a number is allowed."""
        return math.isfinite(number) and self.least <= number <= self.most

    def __str__(self) -> str:
        least = _figure(self.least)
        return f"{least} or more" if self.most == math.inf else f"{least} to {_figure(self.most)}"


@dataclass(frozen=True)
class Words:
    """One of these words.

    Attributes:
        several: Any of them, with commas between.
    """

    words: tuple[str, ...]
    several: bool = False

    def permits(self, text: str) -> bool:
        """Return whether a text is allowed; of several words, whether each is."""
        if not self.several:
            return text in self.words
        return {word.strip().lower() for word in text.split(",")} <= {"", *self.words}

    def __str__(self) -> str:
        return f"any of {', '.join(self.words)}, with commas" if self.several else f"one of {', '.join(self.words)}"


def _figure(number: float) -> str:
    return f"{int(number):,}" if number == int(number) else f"{number:g}"


#: A fraction.
SHARE = Numbers(0, 1)
#: Seconds; eleven days are as good as for ever, and no clock overflows.
SECONDS = Numbers(0, 1_000_000)
#: Seconds of something that must take time.
LENGTH_S = Numbers(0.001, 1_000_000)
#: Iterations, events, executions, peers.
COUNT = Numbers(1, 1_000_000_000)


def _setting(
    default: Any, doc: str, allowed: Numbers | Words | None = None, source: str = "ours", secret: bool = False
) -> Any:
    """Declare a setting; `allowed` bounds every number."""
    facts = {"doc": doc, "allowed": allowed, "source": source, "secret": secret}
    return field(default=default, repr=not secret, metadata=facts)


def allowed(setting: Field[Any]) -> str:
    """Describe in words what a setting may be."""
    if isinstance(setting.default, bool):
        return "true or false"
    limits = setting.metadata["allowed"]
    if isinstance(setting.default, int):
        return f"a whole number, {limits}"
    if isinstance(setting.default, float):
        return f"a number, {limits}"
    return "text" if limits is None else str(limits)


@dataclass(frozen=True)
class Settings:
    """All tunables; `Settings()` is the default, `load_settings` adds file and environment."""

    # --- slow trigger ---
    slowdown: float = _setting(
        0.05,
        "Rise over the best stretch that is to be noticed; 1.3 times as much is allowed.",
        Numbers(0, 1000),
        "EROICA 4.1",
    )
    one_off_fraction: float = _setting(
        0.04, "Slowest iterations left out of each mean (evaluation, checkpoint).", Numbers(0, 0.9)
    )
    expected_iteration_s: float = _setting(
        0.0, "Iterations longer than this are slow from the start, s; 0 = unknown.", SECONDS
    )
    cooldown_s: float = _setting(120.0, "Pause between two windows nobody asked for by hand, s.", SECONDS)

    # --- blocked jobs ---
    silence_s: float = _setting(10.0, "No hooked event for at least so long may mean a blocked worker, s.", SECONDS)
    silence_learning_s: float = _setting(
        300.0, "The same limit while the iteration pattern is not known yet, s.", SECONDS
    )
    answering_thread: bool = _setting(
        True, "A sleeping thread in each worker tells the agent, when asked, what it waits for."
    )

    # --- comparison ---
    roles: str = _setting(
        "",
        "Which workers play the same role, where process groups do not tell: names with ranks, as in "
        "'actor=0-3;critic=4-7' (others: one role of their own); empty = read from process groups.",
    )

    # --- window ---
    window_s: float = _setting(20.0, "Wanted length of a window, s.", LENGTH_S, "EROICA 3.1")
    first_look_s: float = _setting(
        5.0,
        "Length of a slowdown's first window, s, longer where iterations are; where its verdict is not sure, one of "
        "`window_s` follows at once. 0 = that one only.",
        SECONDS,
    )
    max_window_iterations: int = _setting(
        200, "Most iterations of a window of a second or more; more add nothing to the statistics.", COUNT
    )
    max_window_events: int = _setting(150_000, "Budget of trace events per worker and window.", COUNT)
    hard_window_events: int = _setting(
        1_000_000,
        "No window opens whose fewest iterations make more trace events per worker: each stops the training for 4 µs "
        "and takes 1.2 kB of its memory.",
        COUNT,
    )
    window_deadline_s: float = _setting(
        60.0, "After the window's end: latest time for a worker's patterns, s.", SECONDS
    )
    baseline_window: bool = _setting(True, "Capture one short window while the job is healthy, to compare with later.")
    baseline_after_iterations: int = _setting(
        60,
        "Iterations after warm-up before the baseline window; fewer, but ten, where they take more than 0.25 s.",
        Numbers(0, 1_000_000_000),
    )
    baseline_window_s: float = _setting(
        3.0, "Length of the baseline window, s; longer where iterations are long.", LENGTH_S
    )

    # --- capture ---
    sampler: str = _setting(
        "auto",
        "Who samples stacks: auto, outside (py-spy), inside (a thread), none.",
        Words(("auto", "outside", "inside", "none")),
    )
    keep_traces: bool = _setting(False, "Keep raw traces after their summary, up to half of `scratch_bytes`.")
    scratch_bytes: int = _setting(
        2_000_000_000, "Most bytes of raw traces on a host; above it windows get shorter.", Numbers(0)
    )

    # --- reading trace files ---
    max_trace_bytes: int = _setting(
        20_000_000_000,
        "Most bytes of one unpacked trace file that are read; the rest is left out, and said so.",
        Numbers(1),
    )
    max_trace_events: int = _setting(20_000_000, "Most events of one trace file that are kept; the same.", Numbers(1))
    readers: int = _setting(0, "Trace files read at the same time; 0 = as many as there are cores.", Numbers(0, 10_000))

    # --- summarize (EROICA, section 4.2) ---
    pattern_bytes: int = _setting(
        24_000, "Byte budget of function rows of one worker on the wire.", Numbers(1000, 200_000)
    )

    # --- localize (EROICA, section 4.3): thresholds that nobody sets ---
    #: Share of the window that a function must exceed (equation 11).
    beta_gate: ClassVar[float] = 0.01
    #: Highest expected beta of a Python function, and of a collective; the latter is for the record, not for causes.
    expected_python: ClassVar[float] = 0.01
    expected_collective: ClassVar[float] = 0.30
    #: The same of memory operations, on which the paper is silent.
    expected_memory: ClassVar[float] = 0.05
    #: Highest share of a recorded iteration in which the device may wait for the host; ours.
    expected_host: ClassVar[float] = 0.40

    # --- analysis ---
    engine: str = _setting(
        "auto",
        "Where windows are analyzed: local, ray (RAY_ADDRESS's cluster, or one on this host), ray://HOST:PORT; auto = "
        "local, but ray where there are more workers than one process carries and it is installed.",
    )

    # --- diagnose ---
    min_gain: float = _setting(0.03, "A cause must cost at least this fraction of the iteration.", SHARE)

    # --- telling others ---
    webhook_url: str = _setting(
        "",
        "Where verdicts are sent as they come, https://...; a secret, so not with --set: EROICA_WEBHOOK_URL or "
        "eroica.toml.",
        secret=True,
    )
    webhook_format: str = _setting(
        "slack", "What is sent: slack (a text), or json (text and whole verdict).", Words(("slack", "json"))
    )
    webhook_on: str = _setting(
        "slow,blocked",
        "Verdicts that are sent: any of slow, blocked, undetermined, healthy, with commas.",
        Words(("slow", "blocked", "undetermined", "healthy"), several=True),
    )
    metrics_listen: str = _setting(
        "", "Where Prometheus finds the metrics, HOST:PORT, beside the collector's own address; empty = only there."
    )
    metrics_targets: str = _setting(
        "", "A directory in which each job says where its metrics are, for Prometheus's file_sd_configs; empty = none."
    )
    metrics_token: str = _setting(
        "",
        "Opens the metrics and nothing else, 16 to 200 characters; empty = metrics.token in the run directory.",
        secret=True,
    )
    otlp_endpoint: str = _setting(
        "", "Where OpenTelemetry is sent, http://HOST:4318 (extra otel; gRPC: docs/metrics.md); empty = nowhere."
    )
    trainjob_status: bool = _setting(
        False,
        "In a Kubeflow TrainJob, post verdict and iteration time into its status; replaces what others post there.",
    )

    # --- reporting to a fleet's service ---
    fleet: str = _setting(
        "", "Where this job reports to, https://HOST:PORT of an `eroica serve`; empty = nowhere. See docs/fleet.md."
    )
    fleet_token: str = _setting(
        "",
        "What a project's reports are let in with; a secret, so not with --set: EROICA_FLEET_TOKEN or eroica.toml.",
        secret=True,
    )
    fleet_ca: str = _setting(
        "", "PEM file with the authority that the service's certificate is from; empty = usual ones."
    )
    fleet_plain_http: bool = _setting(
        False, "Report to http://, too, where that leaves the host: the token travels in clear."
    )
    fleet_report_s: float = _setting(
        30.0, "Pause between two reports of iteration times; verdicts go at once, s.", LENGTH_S
    )
    fleet_patience_s: float = _setting(
        600.0, "How long reports that could not be handed over are tried again after the job's end, s.", SECONDS
    )

    # --- processes ---
    sealed_memory: bool = _setting(
        True, "Workers tell how far they are in memory that nobody can cut short; off where agents cannot reach it."
    )
    job_end_grace_s: float = _setting(30.0, "Without `eroica run`: no worker for so long ends the job, s.", SECONDS)
    footer: bool = _setting(True, "A live line at the bottom of the terminal of `eroica run`, where that is safe.")
    pages: bool = _setting(True, "Draw each verdict as a page, index.html in the run directory and in its windows.")
    page_hosts: str = _setting(
        "", "Names beside loopback under which the live page may be opened (a proxy's), separated by commas."
    )


def load_settings(
    overrides: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None, directory: Path | None = None
) -> Settings:
    """Load settings from flags, environment, file and defaults, in this order.

    Args:
        overrides: Values by name; None values are ignored.
        environ: Environment, default `os.environ`.
        directory: Where `eroica.toml` is looked for, default the working directory.

    Raises:
        UsageError: A name is unknown, a value is not what the setting may be, or the file cannot be read.
    """
    environ = os.environ if environ is None else environ
    values: dict[str, Any] = dict(_from_file(config_file(environ, directory)))
    for item in fields(Settings):
        text = environ.get(f"EROICA_{item.name.upper()}")
        if text is not None:
            values[item.name] = text
    values.update({name: value for name, value in (overrides or {}).items() if value is not None})
    known = {item.name: item for item in fields(Settings)}
    checked: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known:
            raise UsageError(f"unknown setting {name!r}; `eroica settings` lists them all")
        checked[name] = _convert(value, known[name])
    parse_roles(checked.get("roles", ""))
    check_engine(checked.get("engine", "auto"))
    return replace(Settings(), **checked)


def config_file(environ: Mapping[str, str], directory: Path | None = None) -> Path | None:
    """Return the settings file: what `EROICA_CONFIG` names, else `eroica.toml` here; None for none.

    Args:
        environ: Environment. An empty `EROICA_CONFIG` says that there is none.
        directory: Where it is looked for, default the working directory.
    """
    named = environ.get(CONFIG)
    if named == "":
        return None
    path = Path(named or (directory or Path()) / "eroica.toml")
    try:
        return path if path.is_file() and (named or _may_decide(path)) else None
    except OSError:  # where we may not look
        return None


def pinned_config(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `EROICA_CONFIG` with an absolute path, so that all processes of the job find the file after `os.chdir`."""
    path = config_file(environ)
    return {CONFIG: environ.get(CONFIG, "") if path is None else str(path.absolute())}


def _from_file(path: Path | None) -> Mapping[str, Any]:
    if path is None:
        return {}
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} cannot be used: {error}") from error


def _may_decide(found: Path) -> bool:
    """Whether a file that nobody named counts: not one that a stranger has put where everybody may (`cd /tmp`)."""
    everybody = found.parent.stat().st_mode & stat.S_IWOTH
    return not everybody or found.lstat().st_uid in (0, os.getuid())


def _convert(value: Any, setting: Field[Any]) -> Any:
    """Convert `value` to the type of the setting and check it.

    Raises:
        UsageError: It is not.
    """
    limits = setting.metadata["allowed"]
    try:
        converted = _typed(value, setting.default)
        if limits is None or limits.permits(converted):
            return converted
    except (ValueError, KeyError, TypeError, OverflowError):
        pass
    raise UsageError(f"setting {setting.name} cannot be {value!r}; it wants {allowed(setting)}")


def _typed(value: Any, default: Any) -> Any:
    if isinstance(default, bool):
        if isinstance(value, bool):
            return value
        return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}[str(value).lower()]
    if isinstance(default, int):
        number = float(value)
        if number != int(number):
            raise ValueError
        return int(number)
    return float(value) if isinstance(default, float) else str(value)


def parse_roles(text: str) -> dict[str, frozenset[int]]:
    """Read the global ranks of each stated role, in the order of the text; none for an empty text.

    Args:
        text: Roles separated by ";", each a name, "=", and ranks or ranges of them ("0-3") separated by ",".

    Raises:
        UsageError: The text has another form, names a role twice, or puts a rank into two roles.
    """
    import re  # most jobs state no roles

    roles: dict[str, frozenset[int]] = {}
    for part in filter(None, map(str.strip, text.split(";"))):
        name, _, listed = map(str.strip, part.partition("="))
        pieces = [re.fullmatch(r"(\d{1,6})(?: *- *(\d{1,6}))?", piece.strip(), re.ASCII) for piece in listed.split(",")]
        spans = [range(int(one[1]), int(one[2] or one[1]) + 1) for one in pieces if one is not None]
        if not name or name in roles or len(spans) < len(pieces) or not all(spans):
            example = "'actor=0-3;critic=4,6,8-11'"
            raise UsageError(f"roles cannot be {text!r}: {part!r} is no new name with ranks, as in {example}")
        ranks = frozenset(rank for span in spans for rank in span)
        for other, taken in roles.items():
            if both := sorted(ranks & taken):
                raise UsageError(f"roles cannot be {text!r}: rank {both[0]} is in both {other!r} and {name!r}")
        roles[name] = ranks
    return roles


def check_ranks(roles: dict[str, frozenset[int]], workers: int) -> None:
    """Refuse ranks that a job of so many workers does not have.

    Raises:
        UsageError: Some role has such a rank.
    """
    for name, ranks in roles.items():
        unknown = sorted(rank for rank in ranks if rank >= workers)
        if unknown:
            raise UsageError(
                f"roles give rank {unknown[0]} to {name!r}, but this job has ranks 0 to {workers - 1} only"
            )


def check_engine(text: str) -> None:
    """Look whether a setting names an engine.

    Raises:
        UsageError: It does not.
    """
    if text not in ("auto", "local", "ray") and not (text.startswith("ray://") and len(text) > len("ray://")):
        raise UsageError(f"setting engine cannot be {text!r}; it wants auto, local, ray or ray://HOST:PORT")
