import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eroica.errors import InputError
from eroica.trace.stacks import frame_text, read_stacks, short_file, split_frame

START_NS = 5_000_000_000


class Sampler:
    """Writes what py-spy writes of a process: differences to the last stack of the same pthread id."""

    def __init__(self):
        self.events = []
        self.open = {}

    def sample(self, ts, frames, kernel_tid=11, tid=900):
        new = [(f"thread ({kernel_tid}): MainThread", "", 0), *frames]
        old = self.open.get(tid, [])
        same = 0
        while same < min(len(old), len(new)) and old[same] == new[same]:
            same += 1
        for frame in reversed(old[same:]):
            self._event("E", frame, tid, ts)
        for frame in new[same:]:
            self._event("B", frame, tid, ts)
        self.open[tid] = new

    def finish(self, ts):
        for tid, frames in self.open.items():
            for frame in reversed(frames):
                self._event("E", frame, tid, ts)

    def _event(self, phase, frame, tid, ts):
        place = {"filename": frame[1], "line": frame[2]}
        self.events.append(
            {"args": place, "cat": "py-spy", "name": frame[0], "ph": phase, "pid": 11, "tid": tid, "ts": ts}
        )

    def write(self, directory, rate_hz=100, text=None):
        directory.mkdir(exist_ok=True)
        (directory / "stacks.json").write_text(json.dumps(self.events) if text is None else text)
        meta = {"start_monotonic_ns": START_NS, "rate_hz": rate_hz, "source": "py-spy"}
        (directory / "stacks.meta.json").write_text(json.dumps(meta))
        return read_stacks([directory / "stacks.json"])


MAIN = ("<module>", "/home/u/project/train.py", 1)
STEP = ("step", "/home/u/project/train.py", 10)
FETCH = ("fetch", "/opt/venv/lib/python3.11/site-packages/torch/utils/data/_utils/fetch.py", 49)


def stack_at(timeline, thread_id, time_ns):
    for number, thread in enumerate(timeline.threads):
        if thread == (11, thread_id):
            stack, start, end = timeline.of_thread(number)
            held = [
                timeline.stacks[one] for one, low, high in zip(stack, start, end, strict=True) if low <= time_ns < high
            ]
            return held[0] if held else None
    return None


def test_a_stack_holds_until_the_next_sample_that_differs(tmp_path):
    sampler = Sampler()
    for ts, frames in [(0, [MAIN]), (10_000, [MAIN, STEP]), (20_000, [MAIN, STEP]), (30_000, [MAIN])]:
        sampler.sample(ts, frames)
    sampler.finish(40_000)
    timeline = sampler.write(tmp_path)
    assert timeline.threads[0] == (11, 11)
    stack, start, end = timeline.of_thread(0)
    assert [len(timeline.stacks[one]) for one in stack] == [1, 2, 1]
    assert [(int(low - START_NS), int(high - START_NS)) for low, high in zip(start, end, strict=True)] == [
        (0, 10_000_000),
        (10_000_000, 30_000_000),
        (30_000_000, 40_000_000),
    ]


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([11, 12, 13]), st.lists(st.sampled_from([MAIN, STEP, FETCH]), max_size=5)),
        min_size=1,
        max_size=60,
    )
)
def test_every_sample_is_found_again_whichever_thread_has_its_number(tmp_path_factory, samples):
    sampler = Sampler()
    for number, (thread, frames) in enumerate(samples):
        sampler.sample(number * 1000, frames, thread)
    sampler.finish(len(samples) * 1000)
    timeline = sampler.write(tmp_path_factory.mktemp("s"), rate_hz=1)
    for number, (thread, frames) in enumerate(samples):
        expected = tuple(frame_text(*frame) for frame in frames)
        assert (stack_at(timeline, thread, START_NS + number * 1_000_000) or ()) == expected


@pytest.mark.parametrize("lost", [1, 3, 40, 170, 400])
def test_a_file_cut_short_is_read_as_far_as_it_goes(tmp_path, lost):
    sampler = Sampler()
    for turn in range(20):
        sampler.sample(turn * 10_000, [MAIN, STEP] if turn % 2 else [MAIN])
    text = json.dumps(sampler.events, separators=(",", ":"))
    timeline = sampler.write(tmp_path, text=text[:-lost])
    assert stack_at(timeline, 11, START_NS + 15_000_000)[-1] == "step (project/train.py:10)"


def test_frames_that_make_no_sense_are_left_out(tmp_path):
    sampler = Sampler()
    sampler.sample(0, [MAIN])
    sampler.sample(10_000, [MAIN, ("st\x00ep\ufffd", "/x.py", 1)])
    sampler.sample(20_000, [MAIN, STEP])
    sampler.sample(30_000, [MAIN])
    timeline = sampler.write(tmp_path)
    assert all(frame.isprintable() for stack in timeline.stacks for frame in stack)
    assert stack_at(timeline, 11, START_NS + 25_000_000)[-1] == "step (project/train.py:10)"


@pytest.mark.parametrize("text", ["", "{", "3", '{"a": 1}', "[3]", '[{"ph": "B"}]'])
def test_a_foreign_file_is_refused_or_empty(tmp_path, text):
    try:
        timeline = Sampler().write(tmp_path, text=text)
    except InputError as error:
        assert "stacks" in str(error)
    else:
        assert len(timeline.thread) == 0


@pytest.mark.parametrize(
    ("path", "short"),
    [
        ("/opt/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", "torch/utils/data/dataloader.py"),
        ("/usr/lib/python3/dist-packages/numpy/core/a.py", "numpy/core/a.py"),
        ("/opt/python-3.11.7/lib/python3.11/multiprocessing/queues.py", "multiprocessing/queues.py"),
        ("/usr/lib/python3.12/threading.py", "threading.py"),
        ("/home/u/src/pytorch/torch/nn/modules/module.py", "torch/nn/modules/module.py"),
        ("/data/runs/17/project/train.py", "project/train.py"),
        ("train.py", "train.py"),
        ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap>"),
        ("<eval_with_key>.12", "<eval_with_key>"),
        ("/tmp/ipykernel_4711/123456.py", "ipykernel/cell.py"),
        ("/tmp/torchinductor_root/ab/cabxyz.py", "torchinductor/compiled.py"),
        ("", ""),
        ("/home/me/eroica/src/eroica/worker/attach.py", "eroica/worker/attach.py"),
    ],
)
def test_file_names_lose_what_differs_between_hosts_and_runs(path, short):
    assert short_file(path) == short


def test_addresses_leave_function_names_and_frames_can_be_taken_apart():
    frame = frame_text("<lambda at 0x7f00dead>", "/a/b (old)/c.py", 3)
    assert frame == "<lambda at 0x> (b (old)/c.py:3)"
    assert split_frame(frame_text("Data.__getitem__", "/a/b/c.py", 3)) == ("Data.__getitem__", "b/c.py")
    assert split_frame("plain") == ("plain", "")
