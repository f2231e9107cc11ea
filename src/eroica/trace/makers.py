"""Device events of makers that give them no category of Kineto's: told by the names of process and track.

Kineto gives each event a category. torch_npu's `trace_view.json` (Ascend), and TPU or GPU traces that were converted
from an XPlane, put a device's work into processes of their own and name those in metadata. What is on a device and of
no kind that is known is left out, and said to be.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from eroica.trace.table import Category

Place = tuple[str, "int | str", "int | str"]
#: Processes that only repeat, in another form, what other ones hold.
_VIEWS = frozenset({"overlap analysis", "ai core freq", "ddr", "hbm", "npu_mem", "npu mem", "acc_pmu", "qos"})
_XLA_DEVICE = re.compile(r"^/device:(TPU|GPU|CUSTOM):", re.IGNORECASE)
_XLA_WORK = re.compile(r"^(XLA Ops|Stream #\d+)")
_DEVICE = re.compile(r"\b(gpu|npu|xpu|hpu|tpu|mtia|gaudi|ascend|accelerator|hardware|device)\b", re.IGNORECASE)
#: Categories that Kineto gives to what is on a device without being work: marks, arrows, synchronization.
_NO_WORK = re.compile(
    r"^(gpu_user_annotation|ac2g|fwdbwd|async\w*|cuda_sync|cuda_event|cuda_profiler_range|overhead|trace|hlo|"
    r"gpu_pm_counter|mtia_\w*|user_annotation|instant_event|collective)$",
    re.IGNORECASE,
)
#: Tasks of Ascend's streams that are no work: they wait for events, or mark them.
_NO_TASK = re.compile(
    r"^(EVENT_|NOTIFY|Notify_|PROFILER|PROFILING_|CMO|CAPTURE_|MODEL_|END_GRAPH|FLIP|PLACE_HOLDER)", re.IGNORECASE
)
_MEMORY_TASK = re.compile(r"^(MEMCPY|SDMA|MEMSET)", re.IGNORECASE)


def kind_of_place(
    place: Place, processes: Mapping[int | str, str], tracks: Mapping[tuple[object, object], str]
) -> Category:
    """Category of events without one that is known, by where they are.

    Args:
        place: Category, process and thread as the events have them.
        processes: Names (and labels) of processes.
        tracks: Names of threads, by process and thread.
    """
    category, process, thread = place
    name, track = processes.get(process, "").lower(), tracks.get((process, thread), "")
    if category:
        return Category.OTHER
    if name.startswith("ascend hardware"):
        return Category.KERNEL
    if name.startswith("cann"):
        return Category.RUNTIME
    if name.startswith(("communication", "hccl")) and not track.startswith("Plane"):
        return Category.KERNEL
    if _XLA_DEVICE.match(name) and _XLA_WORK.match(track):
        return Category.KERNEL
    return Category.OTHER


def kind_of_task(name: str) -> Category | None:
    """Category of a task of a stream that has no category of its own; None for plain work."""
    if _NO_TASK.match(name):
        return Category.OTHER
    return Category.MEMORY if _MEMORY_TASK.match(name) else None


def unknown_on_device(
    places: Sequence[Place], kinds: Sequence[int], counts: Sequence[int], processes: Mapping[int | str, str]
) -> str:
    """A sentence about device events of an unknown kind, "" if there are none.

    Args:
        places: Category, process and thread of events.
        kinds: Category found for each.
        counts: Events of each.
        processes: Names (and labels) of processes.
    """
    found: dict[str, int] = {}
    for (category, process, _), kind, count in zip(places, kinds, counts, strict=False):
        name = processes.get(process, "")
        is_view = name.lower().split(" | ")[0] in _VIEWS or _XLA_DEVICE.match(name) is not None
        if kind != Category.OTHER or not count or is_view or not _DEVICE.search(name) or _NO_WORK.match(category):
            continue
        label = category or name
        found[label] = found.get(label, 0) + count
    if not found:
        return ""
    listed = ", ".join(sorted(found, key=lambda label: -found[label])[:3])
    return f"device events of an unknown kind ({listed[:120]}) were left out: {sum(found.values()):,} of them"
