"""Traffic of a worker with other hosts over the window, from the channels of `eroica.hardware.tcp`."""

from __future__ import annotations

from eroica.hardware.store import Samples
from eroica.model.pattern import LinkUse
from eroica.model.window import Capture

#: A record takes some 60 bytes on the wire.
_MOST = 16


def link_uses(capture: Capture, samples: Samples | None) -> tuple[LinkUse, ...]:
    """Measure this worker's traffic with each address, those with most bytes first.

    Args:
        capture: Says which worker and when.
        samples: Hardware channels, None if there are none.
    """
    if samples is None:
        return ()
    prefix = f"{capture.worker.pid}/"
    devices = [device for device in samples.devices("link_sent") if device.startswith(prefix)]
    window = (capture.boundaries_ns[0], capture.boundaries_ns[-1])
    found = [_use(samples, device, window) for device in devices if device.count("/") == 2]
    moved = [one for one in found if one.sent_bytes + one.received_bytes > 0 or one.busy_s > 0]
    return tuple(sorted(moved, key=lambda one: -(one.sent_bytes + one.received_bytes))[:_MOST])


def _use(samples: Samples, device: str, window: tuple[int, int]) -> LinkUse:
    seconds = (window[1] - window[0]) * 1e-9

    def mean(name: str) -> float:
        series = samples.find(name, device)
        value = float(series.mean_over(*window)) if series is not None else 0.0
        return value if value > 0 else 0.0  # NaN where the channel begins after the window

    busy = mean("link_busy")
    least = samples.find("link_least_rtt", device)
    _, local, remote = device.split("/")
    return LinkUse(
        local=local,
        remote=remote,
        sent_bytes=_short(mean("link_sent") * seconds),
        received_bytes=_short(mean("link_received") * seconds),
        busy_s=_short(busy * seconds),
        queued_bytes=_short(mean("link_queued")),
        retransmits=_short(mean("link_retransmits") * seconds),
        rtt_s=_short(mean("link_busy_rtt") / busy) if busy else 0.0,
        least_rtt_s=_short(float(least.value.min())) if least is not None else 0.0,
    )


def _short(value: float) -> float:
    return float(f"{value:.4g}")
