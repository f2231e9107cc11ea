"""What the environment asks for: the variables `EROICA_C4D`, `EROICA_ACT_FROM`, ... of whoever starts the job."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from eroica.errors import UsageError

_WORDS = {"1": True, "true": True, "yes": True, "": False, "0": False, "false": False, "no": False}


@dataclass(frozen=True)
class Options:
    """Everything that can be set.

    Attributes:
        watches: `EROICA_C4D`: the ways between hosts are watched.
        on_verdict: `EROICA_ON_VERDICT`: a command that is given each order as JSON on its standard input; no shell.
        on_verdict_url: `EROICA_ON_VERDICT_URL`: where each order is sent; a secret.
        act_from: `EROICA_ACT_FROM`: orders are given for verdicts of at least this confidence; 0 = never.
        act_pause_s: `EROICA_ACT_PAUSE_S`: pause between two orders of a job.
        act_most: `EROICA_ACT_MOST`: orders that one job may give.
    """

    watches: bool = False
    on_verdict: str = ""
    on_verdict_url: str = field(default="", repr=False)
    act_from: float = 0.0
    act_pause_s: float = 300.0
    act_most: int = 3


def read_options(environ: Mapping[str, str]) -> Options:
    """Return what the environment asks for.

    Raises:
        UsageError: A variable is not what it may be.
    """
    if (word := environ.get("EROICA_C4D", "").lower()) not in _WORDS:
        raise UsageError(f"EROICA_C4D cannot be {word!r}; it wants true or false")
    return Options(
        watches=_WORDS[word],
        on_verdict=environ.get("EROICA_ON_VERDICT", ""),
        on_verdict_url=environ.get("EROICA_ON_VERDICT_URL", ""),
        act_from=_number(environ, "EROICA_ACT_FROM", Options.act_from, 1.0),
        act_pause_s=_number(environ, "EROICA_ACT_PAUSE_S", Options.act_pause_s, 1_000_000.0),
        act_most=int(_number(environ, "EROICA_ACT_MOST", Options.act_most, 1000.0)),
    )


def _number(environ: Mapping[str, str], name: str, default: float, most: float) -> float:
    text = environ.get(name)
    try:
        number = default if text is None else float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number <= most:
        raise UsageError(f"{name} cannot be {text!r}; it wants a number, 0 to {most:g}")
    return number
