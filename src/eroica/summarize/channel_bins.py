"""Hardware channels over a window in few bins: for pictures, no finer than they were measured."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from eroica.hardware.store import Samples, Series
from eroica.model.timeline import ChannelSeries
from eroica.model.window import Capture
from eroica.summarize.series import encode_series
from eroica.summarize.sweep import Times
from eroica.summarize.utilization import find_resources

MOST_BINS = 120
#: Values are told in steps of this: finer ones are not to be seen and cost bytes.
_STEP = 1 / 256
#: Lengths of bins keep so many significant bits, so that their middles are short numbers.
_BITS = 6
_OF_A_GPU = ("gpu_utilization", "gpu_memory_utilization", "gpu_power")


def channel_series(capture: Capture, samples: Samples | None, most: int = MOST_BINS) -> list[ChannelSeries]:
    """Channels of a worker and its host that are fractions of something, the most telling first.

    Args:
        capture: Of the worker.
        samples: Hardware channels, None if there are none.
        most: Bins of a channel.
    """
    if samples is None:
        return []
    window = (capture.boundaries_ns[0], capture.boundaries_ns[-1])
    resources = find_resources(capture, samples)
    found = [[resource.series] for resource in resources.values()]
    found.append(list(samples.named("cpu_host")))
    thread = f"{capture.worker.pid}/{capture.training_thread_id}"
    device = resources["device"].series.channel.device if "device" in resources else ""
    others = [samples.find("run_queue", thread), *(samples.find(name, device) for name in _OF_A_GPU)]
    found += [[one] for one in others if one is not None and one.channel.unit == "fraction"]
    made = (_binned(series, window, most) for series in found if series)
    return [one for one in made if one is not None]


def _binned(series: Sequence[Series], window: tuple[int, int], most: int) -> ChannelSeries | None:
    """The mean over several series of one name, and the highest value of any of them; None where nothing was seen."""
    channel = series[0].channel
    per_s = min(channel.rate_hz, 1e9 / max(channel.resolution_ns, 1))
    bins = int(min(most, max((window[1] - window[0]) / 1e9 * per_s, 1)))
    edges = _edges(window, bins)
    low, high = edges[:-1], edges[1:]
    means = np.stack([one.mean_over(low, high) for one in series])
    known = ~np.isnan(means)
    if not known.any():
        return None
    count = known.sum(axis=0)
    mean = np.where(count > 0, np.nansum(means, axis=0) / np.maximum(count, 1), np.nan)
    highest = np.fmax.reduce([_highest(one, low, high) for one in series])
    middle = (low - window[0] + (high - low) / 2) / 1e3
    return ChannelSeries(
        name=channel.name,
        per_s=round(per_s, 1),
        at_us=encode_series(middle.astype(np.float32), exact=True),
        mean=_stepped(mean),
        highest=_stepped(np.fmax(highest, mean)),
    )


def _edges(window: tuple[int, int], bins: int) -> Times:
    """Borders of at most so many bins of equal length, but for the last one."""
    wanted_us = max((window[1] - window[0]) / bins / 1e3, 1.0)
    grain_us = 2.0 ** (np.floor(np.log2(wanted_us)) - _BITS)
    length_ns = np.ceil(wanted_us / grain_us) * grain_us * 1e3
    edges: Times = np.rint(np.arange(window[0], window[1], length_ns, dtype=np.float64)).astype(np.int64)
    return np.append(edges[edges < window[1]], window[1])


def _highest(series: Series, low: Times, high: Times) -> NDArray[np.float64]:
    """The highest value that holds at some moment of each bin; NaN where there is none."""
    first = np.searchsorted(series.t_ns, low, side="right")
    after = np.searchsorted(series.t_ns, high, side="left") + 1
    after = np.minimum(after, len(series.t_ns))
    padded = np.append(series.value, np.nan)
    bounds = np.stack((first, np.maximum(after, first + 1)), axis=1).ravel()
    highest: NDArray[np.float64] = np.fmax.reduceat(np.append(padded, np.nan), bounds)[::2]
    return np.where((after > first) & (high > series.start_ns), highest, np.nan)


def _stepped(value: NDArray[np.float64]) -> bytes:
    return encode_series((np.rint(np.clip(value, 0.0, 1.0) / _STEP) * _STEP).astype(np.float32), exact=True)
