"""What to inject, where and when, as data: a JSON object in `EROICA_FAULT`, on a command line or in a test.

    {"name": "slow-loader", "worker": 2, "from_iteration": 150, "until": null, "seconds": 0.02}
    slow-loader:worker=2,from_iteration=150

The second line is a short form of the first. Keys beside `name`, `worker`, `from_iteration` and `until` are options of
the fault itself; `eroica.demo.FAULTS` lists them. Several plans at once are a JSON list.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eroica.errors import UsageError

VARIABLE = "EROICA_FAULT"


@dataclass(frozen=True)
class FaultPlan:
    """One fault in one job.

    Attributes:
        name: Which fault, a key of `FAULTS`.
        worker: Global rank of the worker that has it; None = every worker.
        from_iteration: First iteration with the fault, counted from 0.
        until: First iteration without it again; None = it stays.
        options: Numbers of the fault itself; what is missing has the fault's default.
    """

    name: str
    worker: int | None = None
    from_iteration: int = 0
    until: int | None = None
    options: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("worker", "from_iteration", "until"):
            value = getattr(self, name)
            if value is None and name != "from_iteration":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise UsageError(f"{name} of a fault plan must be a whole number >= 0, not {value!r}")
        for option, value in self.options.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
                raise UsageError(f"fault option {option} must be a number >= 0, not {value!r}")

    def hits(self, worker: int) -> bool:
        """Whether `worker` (a global rank) has the fault at all."""
        return self.worker is None or self.worker == worker

    def is_active(self, iteration: int) -> bool:
        """Whether the fault is there in `iteration`."""
        return self.from_iteration <= iteration and (self.until is None or iteration < self.until)

    def to_json(self) -> str:
        """The form that `read_plans` and `EROICA_FAULT` take."""
        fields = {"name": self.name, "worker": self.worker, "from_iteration": self.from_iteration, "until": self.until}
        return json.dumps({**fields, **self.options})


def read_plans(text: str) -> tuple[FaultPlan, ...]:
    """Plans from JSON (an object or a list of objects) or from the short form `name:key=value,key=value`.

    Raises:
        UsageError: The text is neither, or a value is out of range. Whether a fault of that name exists is checked by
            `inject`.
    """
    text = text.strip()
    if not text or text == "none":
        return ()
    if text[0] not in "{[":
        return (_plan(_short_form(text)),)
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(f"fault plan {text!r} is no JSON: {error}") from None
    return tuple(_plan(item) for item in (found if isinstance(found, list) else [found]))


def plans_from_environment(environ: Mapping[str, str] | None = None) -> tuple[FaultPlan, ...]:
    """Plans in `EROICA_FAULT`, none if it is not set."""
    return read_plans((os.environ if environ is None else environ).get(VARIABLE, ""))


def _short_form(text: str) -> dict[str, Any]:
    name, _, rest = text.partition(":")
    values: dict[str, Any] = {"name": name.strip()}
    for part in filter(None, rest.split(",")):
        key, _, value = part.partition("=")
        try:
            values[key.strip()] = json.loads(value)
        except ValueError:
            raise UsageError(f"fault plan {text!r}: {part!r} is not key=number") from None
    return values


def _plan(item: Any) -> FaultPlan:
    if not isinstance(item, dict) or not isinstance(item.get("name"), str):
        raise UsageError(f"a fault plan needs a name, like {{'name': 'slow-loader', 'worker': 2}}; this is {item!r}")
    known = {key: item[key] for key in ("name", "worker", "from_iteration", "until") if key in item}
    return FaultPlan(**known, options={key: value for key, value in item.items() if key not in known})
