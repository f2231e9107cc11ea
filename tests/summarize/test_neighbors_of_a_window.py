"""What a survey of the host becomes in a pattern: neighbors, facts of the host, settings."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from synthetic_window import PID, capture

from eroica.errors import InputError
from eroica.hardware.store import Samples, read_samples
from eroica.hardware.writer import Channel, SampleWriter
from eroica.model.window import MOST_BYTES, Capture, bounded_setup, read_setup
from eroica.model.worker import Worker
from eroica.summarize.facts import find_neighbors, host_facts

S = 1_000_000_000
START = 100 * S
WINDOW = (START, START + 5 * S, START + 10 * S)


class Store:
    """A store that the test fills."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.writer = SampleWriter(directory)

    def counter(self, name: str, device: str, *points: tuple[float, float]) -> None:
        """Totals at seconds after the window's start."""
        number = self.writer.declare(Channel(name, device, "cores"), "counter", 1e-9)
        for at, total in points:
            self.writer.add(number, START + round(at * S), total)

    def gauge(self, name: str, device: str, *points: tuple[float, float], capacity: float = 1.0) -> None:
        number = self.writer.declare(Channel(name, device, "B", capacity))
        for at, value in points:
            self.writer.add(number, START + round(at * S), value)

    def neighbor(self, pid: int, name: str, cores: float, begin: float = -1.0, end: float = 11.0) -> None:
        self.counter("neighbor_cpu", f"{pid}/{name}", (begin, 5e9), (end, 5e9 + cores * (end - begin) * 1e9))

    def read(self) -> Samples:
        self.writer.close()
        return read_samples(self.directory)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "samples")


def window(**changed: object) -> Capture:
    return capture(WINDOW, **changed)


def test_a_neighbor_is_told_with_its_mean_over_the_window(store: Store) -> None:
    store.neighbor(7, "python (serve.py)", 1.5)
    (one,) = find_neighbors(window(), store.read())
    assert (one.name, one.pid) == ("python (serve.py)", 7)
    assert one.cpu_cores == pytest.approx(1.5)


def test_one_that_lived_for_a_part_of_the_window_counts_by_that_part(store: Store) -> None:
    store.neighbor(7, "make", 2.0, begin=1.0, end=3.0)
    (one,) = find_neighbors(window(), store.read())
    assert one.cpu_cores == pytest.approx(0.4)


def test_processes_on_the_workers_own_device_come_first_and_those_of_others_not_at_all(store: Store) -> None:
    store.neighbor(7, "build", 3.0)
    store.neighbor(8, "infer", 0.2)
    for at, pid in ((0, 8), (1, 9)):
        store.gauge("neighbor_gpu", f"gpu{at}/uuid-{at}/{pid}/infer", (0, 0.3), (10, 0.3))
    samples = store.read()
    worker = Worker(global_rank=0, pid=PID, device="cuda:0")
    first, second = find_neighbors(window(worker=worker), samples)
    assert (first.pid, first.device, first.cpu_cores) == (8, "cuda:0", pytest.approx(0.2))
    assert first.device_utilization == pytest.approx(0.3)
    assert (second.pid, second.device) == (7, "")
    hidden = msgspec.structs.replace(worker, device_uuid="uuid-1")  # its cuda:0 is the host's second device
    assert find_neighbors(window(worker=hidden), samples)[0].pid == 9
    assert [one.device for one in find_neighbors(window(), samples)] == ["", ""]


def test_what_cores_did_is_told_apart_by_whose_processes_did_it(store: Store) -> None:
    for whose, cores in (("job", 2.0), ("outside", 1.0), ("ours", 0.1)):
        store.counter("survey_cpu", whose, (-1, 0), (11, cores * 12e9))
    for core in range(4):
        store.gauge("cpu_host", f"cpu{core}", (-1, 0.9), (11, 0.9))
        store.gauge("cpu_steal", f"cpu{core}", (-1, 0.05), (11, 0.05))
    store.gauge("cpu_process", str(PID), (-1, 0.7), (11, 0.7))
    store.gauge("cpu_process", "4711", (-1, 0.2), (11, 0.2))
    facts = host_facts(window(loader_pids=(4711,)), store.read())
    assert facts["cores_job"] == pytest.approx(2.0)
    assert facts["cores_outside"] == pytest.approx(1.0)
    assert facts["cores_unseen"] == pytest.approx(0.5)
    assert facts["cores_worker"] == pytest.approx(0.9)
    assert facts["steal"] == pytest.approx(0.05)


def test_settings_are_bounded_in_number_length_and_letters() -> None:
    facts = bounded_setup({"b": "x" * 500, "a": "1\x1b[31m\n", "n" * 100: "1"})
    assert facts == {"a": "1[31m", "b": "x" * 80}
    crowd = {f"env:NCCL_{at:02}": "v" * 80 for at in range(40)} | {"torch_threads": "4", "nice": "0"}
    assert {"torch_threads", "nice"} <= set(bounded_setup(crowd))
    many = bounded_setup({f"name{at:04}": "v" * 80 for at in range(1000)})
    assert 0 < sum(len(name) + len(value) for name, value in many.items()) <= MOST_BYTES


@pytest.mark.parametrize("content", [b"", b"[1]", b'{"a": 1}', b"\xff", b"[" * 100_000])
def test_a_damaged_list_of_settings_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "setup.json"
    path.write_bytes(content)
    with pytest.raises(InputError):
        read_setup(path)


def test_what_the_driver_says_of_the_workers_own_device(store: Store) -> None:
    for device, clock in (("gpu0/a", 0.9), ("gpu1/b", 0.5)):
        store.gauge("gpu_sm_clock", device, (-1.0, clock), (11.0, clock))
    facts = host_facts(window(worker=Worker(global_rank=0, pid=PID, device="cuda:1", device_uuid="b")), store.read())
    assert facts["gpu_sm_clock"] == pytest.approx(0.5)
