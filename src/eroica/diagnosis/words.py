"""Words that several sentences share: durations, names of workers and of hosts, rank 0's extra duty."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

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
    listed = ", ".join(str(rank) for rank in ranks[:-1])
    text = f"workers {listed} and {ranks[-1]}" if len(ranks) > 1 else f"worker {ranks[0]}"
    return text[0].upper() + text[1:] if capital else text


def list_numbers(numbers: Sequence[int]) -> str:
    """List rising numbers with runs drawn together: "0 to 4", "2, 3 and 7 to 9"."""
    parts = [
        f"{one} to {last}" if last > one + 1 else " and ".join(map(str, {one: 0, last: 0}))
        for one, last in runs(numbers)
    ]
    return f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else "".join(parts)


def accused_hosts(view: View, workers: Sequence[int]) -> tuple[str, ...]:
    """List hosts whose workers are (nearly) all accused, if they hold (nearly) all the accused and not all workers."""
    homes = view.homes
    accused: dict[str, int] = defaultdict(int)
    for worker in workers:
        accused[view.fleet.patterns[worker].worker.host] += 1
    whole = [
        host
        for host in homes
        if host and len(homes[host]) > 1 and accused.get(host, 0) >= NEARLY_ALL * len(homes[host])
    ]
    if len(whole) >= len(homes) or sum(accused[host] for host in whole) < max(NEARLY_ALL * len(workers), 1):
        return ()
    return tuple(whole)


def name_accused(view: View, workers: Sequence[int], *, capital: bool = False) -> tuple[str, bool]:
    """Name the accused, as in "host node-3 (workers 24 to 31)" or "worker 2"; and tell whether that is one thing."""
    hosts, ranks = accused_hosts(view, workers), [view.fleet.ranks[worker] for worker in workers]
    if not hosts:
        return name_workers(ranks, capital=capital), len(ranks) == 1
    text = f"{_list_hosts(hosts)}{_members(view, hosts, ranks)}"
    return text[0].upper() + text[1:] if capital else text, len(hosts) == 1


def name_affected(view: View, workers: Sequence[int]) -> str:
    """Name some workers (indices), as in "all 4 workers", "host node-3 (workers 24 to 31)" or "worker 2"."""
    return f"all {view.workers} workers" if len(workers) == view.workers > 1 else name_accused(view, workers)[0]


def _list_hosts(hosts: Sequence[str]) -> str:
    if len(hosts) > FEW:
        return f"{len(hosts)} hosts ({', '.join(hosts[:2])}, ...; "
    return f"host{'s' if len(hosts) > 1 else ''} " + " and ".join(
        part for part in (", ".join(hosts[:-1]), hosts[-1]) if part
    )


def _members(view: View, hosts: Sequence[str], ranks: Sequence[int]) -> str:
    homes = view.homes
    all_there = sum(len(homes[host]) for host in hosts)
    here = {view.fleet.ranks[worker] for host in hosts for worker in homes[host]}
    inside = sorted(here & set(ranks))
    whose = "its" if len(hosts) == 1 else "their"
    of_all = f"{len(inside)} of {whose} {all_there} workers: " if len(inside) < all_there else "workers "
    if len(hosts) > FEW:
        return f"{of_all.removesuffix(': ')})" if len(inside) < all_there else f"{len(inside)} workers)"
    beside = len(ranks) - len(inside)
    more = f" and {beside} more worker{'s' if beside > 1 else ''}" if beside else ""
    return f" ({of_all}{list_numbers(inside)}){more}"


def describe_place(view: View, workers: Sequence[int]) -> Iterator[str]:
    """Describe whole hosts that the accused are on, of several."""
    homes = view.homes
    whole = accused_hosts(view, workers) if 0 < len(workers) < view.workers and len(homes) >= 2 else ()
    if whole:
        count = f"All of {len(homes)} hosts" if len(whole) == len(homes) else f"{len(whole)} of {len(homes)} hosts"
        yield f"{count} hold{'s' if len(whole) == 1 else ''} all of them, and workers of other hosts are not like that."


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
