"""One worker's recording, written as PyTorch's profiler writes it: host and device, stacks, marks, start-up.

    trace = WrittenWorker(calls=10, host_us=100.0, device_us=20.0, stacks=True).record()

A call of the model is a number of equal layers, each of a few operators that launch one kernel each. The host goes from
one operator to the next; the device works through what was launched in order. What limits it, and whether it trains,
follows from the numbers given.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from support.written_jobs import START_US, Event, Trace

_HOST, _ENGINE, _STREAM, _PID = 1, 2, 7, 1
_OPERATORS = ("linear", "rms_norm", "sdpa", "silu", "mm", "gelu")


@dataclass(frozen=True)
class WrittenWorker:
    """A worker without others.

    Attributes:
        calls: Calls of the model.
        layers: Of each call.
        operators: Of each layer.
        host_us: From one operator's begin to the next one's.
        device_us: Each kernel.
        training: A backward pass and an optimizer follow each call.
        marks: Around each call: profiler "steps", a serving loop's "batches", or none.
        stacks: Python functions are recorded.
        startup_us: The first call begins with so much setting up, 0 for none.
        copy_us: Each call ends with a copy of this length that the host waits for; 0 for none.
        jitter: Relative standard deviation of the host's times.
        seed: Of all that is random.
    """

    calls: int = 6
    layers: int = 8
    operators: int = 4
    host_us: float = 100.0
    device_us: float = 20.0
    training: bool = False
    marks: Literal["steps", "batches", "none"] = "none"
    stacks: bool = False
    startup_us: float = 0.0
    copy_us: float = 0.0
    jitter: float = 0.01
    seed: int = 1

    def record(self) -> Trace:
        """What the profiler writes."""
        return _Recorder(self).record()


class _Recorder:
    """Host and device, moment by moment."""

    def __init__(self, worker: WrittenWorker) -> None:
        self._worker = worker
        self._random = Random(worker.seed)
        self._host: list[Event] = []
        self._device: list[Event] = []
        self._now = START_US
        self._free = START_US
        self._links = 0
        self._python = 0

    def record(self) -> Trace:
        """Run all calls; the device is waited for at the end."""
        worker = self._worker
        for number in range(worker.calls):
            begun = self._now
            if number == 0 and worker.startup_us:
                self._start_up()
            self._call(number)
            if worker.marks == "steps":
                self._add("user_annotation", f"ProfilerStep#{5 + number}", begun, self._now - begun - 1)
            elif worker.marks == "batches":
                self._add(
                    "user_annotation",
                    f"execute_context_0(0)_generation_{number % 3 + 1}(4)",
                    begun,
                    self._now - begun - 1,
                )
        if self._free > self._now:
            self._add("cuda_runtime", "cudaDeviceSynchronize", self._now, self._free - self._now)
        events = [*sorted(self._host, key=lambda one: float(one["ts"])), *self._device]
        return {"schemaVersion": 1, "distributedInfo": {"rank": 0, "world_size": 1}, "traceEvents": events}

    def _call(self, number: int) -> None:
        worker, begun = self._worker, self._now
        self._now += 5
        for _ in range(worker.layers):
            layer = self._now
            for at in range(worker.operators):
                self._operator(_OPERATORS[at % len(_OPERATORS)])
            if worker.stacks:
                self._function("layer.py(9): forward", layer, self._now - layer)
        if worker.stacks:
            self._function("model.py(5): forward", begun, self._now - begun)
        if worker.training:
            for at in range(worker.layers * worker.operators):
                self._operator(
                    "mm", f"autograd::engine::evaluate_function: {_OPERATORS[at % 4].title()}Backward0", _ENGINE
                )
            stepped = self._now
            self._operator("_foreach_add_")
            self._add("user_annotation", "Optimizer.step#SGD.step", stepped, self._now - stepped)
        if worker.copy_us:
            self._copy()

    def _operator(self, name: str, around: str = "", thread: int = _HOST) -> None:
        length = self._worker.host_us * max(0.3, self._random.gauss(1.0, self._worker.jitter))
        begin = self._now
        if around:
            self._add("cpu_op", around, begin, length * 0.9, thread)
        self._add("cpu_op", f"aten::{name}", begin + length * 0.05, length * 0.75, thread)
        self._launch(f"{name}_kernel", begin + length * 0.3, length * 0.2, self._worker.device_us, thread)
        self._now += length

    def _launch(self, name: str, at: float, length: float, device_us: float, thread: int) -> None:
        self._links += 1
        link = {"correlation": self._links}
        self._add("cuda_runtime", "cudaLaunchKernel", at, length, thread, link)
        begin = max(at + length, self._free)
        self._free = begin + device_us
        self._work("kernel", name, begin, device_us, link)

    def _copy(self) -> None:
        """The host asks for a result and waits for it."""
        begin, self._links = self._now, self._links + 1
        start = max(begin + 20, self._free)
        self._free = start + self._worker.copy_us
        self._work(
            "gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", start, self._worker.copy_us, {"correlation": self._links}
        )
        self._add("cpu_op", "aten::item", begin, self._free - begin + 5)
        self._add("cpu_op", "aten::_local_scalar_dense", begin + 2, self._free - begin)
        self._add("cuda_runtime", "cudaMemcpyAsync", begin + 4, 10, args={"correlation": self._links})
        self._add("cuda_runtime", "cudaStreamSynchronize", begin + 16, self._free - begin - 16)
        self._now = self._free + 10

    def _start_up(self) -> None:
        """Context, lazy loading, allocation: the device has nothing to do."""
        for name, share in (("cudaFree", 0.6), ("cudaMalloc", 0.3), ("cuLibraryLoadData", 0.1)):
            self._add("cpu_op", "aten::empty", self._now, self._worker.startup_us * share)
            self._add("cuda_runtime", name, self._now + 1, self._worker.startup_us * share - 2)
            self._now += self._worker.startup_us * share
        self._free = self._now

    def _function(self, name: str, begin: float, length: float) -> None:
        self._python += 1
        self._add("python_function", name, begin, length - 1, args={"Python id": self._python})

    def _work(self, category: str, name: str, begin: float, length: float, link: dict[str, Any]) -> None:
        place = {"stream": _STREAM, "device": 0, **link}
        self._device.append(
            {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": _STREAM, "ts": round(begin, 3),
             "dur": round(length, 3), "args": place}
        )  # fmt: skip

    def _add(
        self, category: str, name: str, ts: float, dur: float, thread: int = _HOST, args: dict[str, Any] | None = None
    ) -> None:
        event: Event = {"ph": "X", "cat": category, "name": name, "pid": _PID, "tid": thread}
        event.update(ts=round(ts, 3), dur=round(max(dur, 0.5), 3))
        self._host.append({**event, "args": args} if args else event)
