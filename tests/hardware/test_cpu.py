import os
import time
from pathlib import Path

import pytest

from eroica.hardware import cpu
from eroica.hardware.store import read_samples
from eroica.hardware.writer import SampleWriter


def test_a_probe_of_a_missing_thread_says_so_and_keeps_no_descriptor(tmp_path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    writer = SampleWriter(tmp_path)
    with pytest.raises(OSError, match=r"No such|not found"):
        cpu.ThreadProbe(writer, os.getpid(), 2**30, 1_000_000, state=True)
    writer.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_our_own_computing_shows_up_as_use_of_a_core(tmp_path) -> None:
    writer = SampleWriter(tmp_path)
    tid = os.getpid()
    probe = cpu.ThreadProbe(writer, tid, tid, 1_000_000, state=True)
    process = cpu.ProcessProbe(writer, tid, 1_000_000)
    began, used = time.monotonic_ns(), time.thread_time_ns()
    while time.thread_time_ns() - used < 100_000_000:
        probe.read()
        process.read()
    ended = time.monotonic_ns()
    probe.close()
    process.close()
    writer.close()
    samples = read_samples(tmp_path)
    device = f"{tid}/{tid}"
    thread, whole, state = (
        samples.find(*key) for key in (("cpu", device), ("cpu_process", str(tid)), ("state", device))
    )
    assert thread is not None
    assert whole is not None
    assert state is not None
    seconds = (ended - began) * 1e-9
    assert thread.mean_over([began], [ended])[0] * seconds == pytest.approx(0.1, abs=0.012)
    assert whole.mean_over([began], [ended])[0] * seconds == pytest.approx(0.1, abs=0.02)
    assert state.share_over(ord("R"), [began], [ended])[0] == pytest.approx(1.0)
    assert thread.channel.resolution_ns >= cpu.tick_ns()


@pytest.mark.parametrize(
    ("place", "state"),
    [
        (b"hrtimer_nanosleep", cpu.NAPPING),
        (b"do_poll.constprop.0", cpu.NAPPING),
        (b"futex_do_wait", cpu.ASLEEP),
        (b"__futex_wait", cpu.ASLEEP),
        (b"0", cpu.HIDDEN),
        (b"", cpu.HIDDEN),
    ],
)
def test_who_waits_for_another_thread_does_not_nap(place: bytes, state: int) -> None:
    assert cpu._kind_of_sleep(place) == state
