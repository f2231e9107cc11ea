"""Find what the training thread waits for inside its own worker: another thread, or a data-loader child.

EROICA, section 6.3, case 3: a robotics job stood still because one worker's data-loading thread was stuck in
`queue.put()`. The paper tells it of that case only; which thread to follow is our rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from eroica.diagnosis.blocked.places import Site, Wait, find_site
from eroica.diagnosis.blocked.scene import Member
from eroica.model.look import ProcessLook, ThreadLook
from eroica.model.words import clean

_WORTH = 2.0
#: How suspicious another thread is that sits in such a wait, by what the training thread waits for. A prefetch thread
#: on a full queue is healthy as long as nobody waits for its data; one that gets from an empty queue has nothing to do.
#: One that sleeps may be anybody's heartbeat: it counts only in the file where the training thread waits.
_SUSPICION: dict[str, dict[Wait, float]] = {
    "data": {"queue-put": 3, "storage": 3, "lock": 3, "futex": 2, "process": 2, "sleep": 1.5, "": 2},
    "room": {"queue-put": 2.5, "storage": 3, "lock": 3, "futex": 2.5, "process": 2, "sleep": 1.5, "": 2},
    "end": {"queue-put": 3, "storage": 3, "lock": 3, "futex": 2, "process": 2, "sleep": 1.5, "queue-get": 2, "": 2},
    "lock": {"lock": 3, "storage": 2, "futex": 2, "process": 2, "sleep": 2, "": 1.5},
    "futex": {"lock": 1.5, "futex": 1.5, "storage": 1, "sleep": 1},
}
_ASKS: dict[Wait, str] = {
    "queue-get": "data", "children": "data", "queue-put": "room", "join": "end", "future": "end", "event": "end",
    "lock": "lock", "futex": "futex",
}  # fmt: skip
_NEAR = 0.6

Who = Literal["thread", "child", "stopped child", "no child"]


class Other(msgspec.Struct, frozen=True, kw_only=True):
    """The thread or child that the training thread waits for.

    Attributes:
        who: Kind: thread, child, stopped child, or no child left.
        label: "its prefetch thread 'feed'", "its data-loader child 4711".
        site: Where it sits.
        is_deadlock: Both wait for a lock: the training thread is as good a place to look as the other.
    """

    who: Who
    label: str
    site: Site
    is_deadlock: bool = False


def find_other(member: Member) -> Other | None:
    """Find the thread or child that the training thread waits for; None if none is seen to hold it up."""
    asks = _ASKS.get(member.site.wait)
    if asks is None:
        return None
    found = list(_children(member)) if member.site.wait in ("children", "queue-get", "future") else []
    if member.site.wait == "children" and not found:
        nobody = _nobody(member)
        if nobody is not None:
            return nobody
    found += _threads(member, asks)
    best = max(found, key=lambda one: (one[0], one[1].label), default=None)
    return best[1] if best is not None and best[0] >= _WORTH else None


def _threads(member: Member, asks: str) -> Iterator[tuple[float, Other]]:
    """List other threads with code of the user's on their stacks, and how suspicious each is."""
    for thread in sorted(member.now.process.threads, key=lambda one: -one.thread_id):
        if thread is member.thread or thread.name.startswith("eroica"):
            continue
        site = find_site(thread)
        worth = _SUSPICION[asks].get(site.wait, 0.0) if site.has_own and site.kind == "code" else 0.0
        if worth and not site.wait and thread.state == "S":
            worth -= 0.5
        if worth:
            yield (
                worth + _nearness(member.site, site),
                Other(
                    who="thread",
                    label=f"its thread {clean(thread.name, 40)!r}" if thread.name else "another of its threads",
                    site=site,
                    is_deadlock=asks in ("lock", "futex") and site.wait in ("lock", "futex"),
                ),
            )


def _nearness(training: Site, other: Site) -> float:
    """Weigh nearness: the same file speaks for a common matter, the same folder a little."""
    if training.own is None or other.own is None or not training.has_own:
        return 0.0
    if training.own.file == other.own.file:
        return _NEAR
    return _NEAR / 2 if training.own.file.rpartition("/")[0] == other.own.file.rpartition("/")[0] else 0.0


def _children(member: Member) -> Iterator[tuple[float, Other]]:
    for child in sorted(member.now.children, key=lambda one: one.pid):
        if child.state in ("T", "t"):
            label = f"its data-loader child {child.pid}, which is stopped (state {child.state})"
            yield 5.0, Other(who="stopped child", label=label, site=find_site(_main(child), in_child=True))
            continue
        site = find_site(_main(child), in_child=True)
        worth = _SUSPICION["data"].get(site.wait, 0.0) if site.has_own else 0.0
        if worth and child.state not in ("Z", "X"):
            yield worth + 1.0, Other(who="child", label=f"its data-loader child {child.pid}", site=site)


def _nobody(member: Member) -> Other | None:
    """Report a loop that waits for loader processes of which none lives."""
    if not any("_MultiProcessingDataLoaderIter" in entry or "_try_get_data" in entry for entry in member.site.stack):
        return None
    if any(child.state not in ("Z", "X") for child in member.now.children):
        return None
    seen = "is alive" if member.now.children else "is to be seen"  # some kernels do not tell who is whose child
    return Other(who="no child", label=f"its data-loader children, of which none {seen}", site=member.site)


def _main(process: ProcessLook) -> ThreadLook | None:
    threads = process.threads
    return next((one for one in threads if one.thread_id == process.pid or one.name == "MainThread"), None)
