"""Words that several sentences share: durations, names of workers and of hosts, rank 0's extra duty."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from eroica.diagnosis.block import Block
from eroica.diagnosis.frames import LARGE_PART, NEARLY_ALL
from eroica.diagnosis.view import View
from eroica.model.words import runs

_MOST_NAMED = 8
#: Of longer lists in a sentence so many are named.
FEW = 3
_LONGEST_NAME = 60


def format_ms(microseconds: float) -> str:
    """Format milliseconds with as many digits as matter: "41 ms", "3.2 ms", "0.04 ms"."""
    value = microseconds / 1e3
    digits = 0 if value >= 10 else 1 if value >= 1 else 2
    return f"{value:.{digits}f} ms"


def short_name(name: str) -> str:
    """Shorten a kernel's name by its template's arguments: "at::native::vectorized_elementwise_kernel<...>"."""
    head, bracket, _ = name.removeprefix("void ").partition("<")
    plain = f"{head}<...>" if bracket and head else name
    return plain if len(plain) <= _LONGEST_NAME else f"{plain[: _LONGEST_NAME - 3]}..."


def name_workers(ranks: Sequence[int], *, capital: bool = False) -> str:
    """Name workers, as in "worker 2", "workers 1 and 3", "300 workers (0, 1, 2, ...)"."""
    if len(ranks) > _MOST_NAMED:
        return f"{len(ranks)} workers ({', '.join(str(rank) for rank in ranks[:FEW])}, ...)"
    text = f"worker{'s' if len(ranks) > 1 else ''} {join_names(ranks)}"
    return text[0].upper() + text[1:] if capital else text


def verb(ranks: Sequence[int], one: str, several: str) -> str:
    """Return the form of a word for one worker, or for several."""
    return one if len(ranks) == 1 else several


def join_names(names: Sequence[object]) -> str:
    """Join names, as in "a", "a and b", "a, b and c"."""
    some = [str(name) for name in names]
    return f"{', '.join(some[:-1])} and {some[-1]}" if len(some) > 1 else "".join(some)


def list_numbers(numbers: Sequence[int]) -> str:
    """List rising numbers with runs drawn together: "0 to 4", "2, 3 and 7 to 9"."""
    pairs = runs(numbers)
    return join_names(
        [f"{one} to {last}" if last > one + 1 else join_names([*{one: 0, last: 0}]) for one, last in pairs]
    )


def accused_hosts(view: View, workers: Sequence[int]) -> tuple[str, ...]:
    """List the hosts of the accused, if (nearly) all workers of each are accused, and not all workers of the job."""
    homes, accused = view.homes, set(workers)
    theirs = dict.fromkeys(view.fleet.patterns[worker].worker.host for worker in sorted(accused))
    whole = [len(homes[host]) > 1 and len(accused & {*homes[host]}) >= NEARLY_ALL * len(homes[host]) for host in theirs]
    return tuple(theirs) if all(theirs) and all(whole) and 0 < len(theirs) < len(homes) else ()


def name_accused(view: View, workers: Sequence[int], *, capital: bool = False) -> tuple[str, bool]:
    """Name the accused, as in "host node-3 (workers 24 to 31)" or "worker 2"; and tell whether that is one thing."""
    hosts, ranks = accused_hosts(view, workers), [view.fleet.ranks[worker] for worker in workers]
    if not hosts:
        return name_workers(ranks, capital=capital), len(ranks) == 1
    text = f"host{'s' if len(hosts) > 1 else ''} {join_names(hosts)} (workers {list_numbers(ranks)})"
    if len(hosts) > FEW:
        text = f"{len(hosts)} hosts ({', '.join(hosts[:2])}, ...; {len(ranks)} workers)"
    return text[0].upper() + text[1:] if capital else text, len(hosts) == 1


def name_affected(view: View, workers: Sequence[int]) -> str:
    """Name some workers (indices), as in "all 4 workers", "host node-3 (workers 24 to 31)" or "worker 2"."""
    return f"all {view.workers} workers" if len(workers) == view.workers > 1 else name_accused(view, workers)[0]


def host_step(view: View, workers: Sequence[int]) -> str:
    """Return the first step where whole hosts are accused; "" where none is."""
    hosts = accused_hosts(view, workers)
    if not hosts:
        return ""
    one = len(hosts) == 1
    listed = ", ".join(hosts[: 2 * FEW]) + (", ..." if len(hosts) > 2 * FEW else "")
    shared = "what its workers share" if one else "what these hosts have in common (rack, power, delivery, image)"
    return f"Check {'host' if one else 'hosts'} {listed} first, and {shared}; train without {'it' if one else 'them'}. "


def is_extra_duty(view: View, found: Block) -> bool:
    """True if rank 0 alone runs a function that no peer runs at all: a progress bar, a checkpoint, metrics."""
    if found.kind not in ("python", "other") or [view.fleet.ranks[worker] for worker in found.workers] != [0]:
        return False
    rows = list(found.focus.functions)
    own = found.workers[0]
    others = [other for other in np.flatnonzero(view.fleet.roles == view.fleet.roles[own]).tolist() if other != own]
    if not rows or not others or found.focus.share < LARGE_PART:
        return False
    if any(view.fleet.keys[row].phase == "input" for row in rows):  # everybody loads data, if from other files
        return False
    named = found.focus.entry
    rows += [row for row, key in enumerate(view.fleet.keys) if named and named in key.stack]  # wherever it is called
    return not view.fleet.total_us[rows][:, others].any()
