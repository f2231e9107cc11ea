"""Nothing of ours stands between the training and torch: in warnings, tracebacks, filters, other observers' files."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from watched_jobs import Host, OneOrder, both

from eroica.wire.beat import DONE, ORDER_FAILED, STATE_NAMES, WINDOW
from eroica.wire.places import SAVING_PREFIX

pytestmark = pytest.mark.jobs

STREAM = """
import sys, time, torch, traceback
class Stream(torch.utils.data.IterableDataset):
    def __len__(self): return 2          # an estimate, too low
    def __iter__(self): return iter(torch.ones(int(sys.argv[1])))
loader = torch.utils.data.DataLoader(Stream(), batch_size=None, num_workers=int(sys.argv[2])); len(loader)
p = torch.nn.Parameter(torch.ones(1)); optimizer = torch.optim.SGD([p], 1e-3)
for x in loader:
    optimizer.zero_grad(); (p * x).sum().backward(); optimizer.step(); time.sleep(0.02)
print("ended", p.item(), flush=True)
class Bad(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, i): raise KeyError("mine")
for x in torch.utils.data.DataLoader(Bad()): pass
"""


@pytest.mark.parametrize("workers", ["0", "1"])
def test_warnings_and_tracebacks_out_of_a_loader_name_the_users_lines(workers: str, host: Host, tmp_path: Path) -> None:
    _, said = both(host, tmp_path, STREAM, words=("30", workers))
    assert f"{tmp_path / 'train.py'}:" in said and "Length of IterableDataset" in said and "KeyError: 'mine'" in said
    (worker,) = host.workers.values()
    assert (worker.beats[-1].iteration, STATE_NAMES[worker.beats[-1].state]) == (30, "finished")


def test_warning_filters_by_module_fit_as_they_did(host: Host, tmp_path: Path) -> None:
    options = ("-W", "error::UserWarning", "-W", "ignore::UserWarning:__main__")
    code = STREAM.partition("class Bad")[0]
    both(host, tmp_path, code, *options, words=("8", "0"))


OBSERVED = """
import collections, json, sys, torch
from torch.profiler import ExecutionTraceObserver
observer = ExecutionTraceObserver(); observer.register_callback(sys.argv[1]); observer.start()
model = torch.nn.Linear(32, 1); optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for _ in range(80):
    optimizer.zero_grad(); model(torch.ones(16, 32)).sum().backward(); optimizer.step()
    import time; time.sleep(0.005)
observer.stop(); observer.unregister_callback()
print(collections.Counter(node["name"] for node in json.load(open(sys.argv[1]))["nodes"])["aten::addmm"])
"""


def test_an_execution_trace_observer_of_the_users_keeps_every_operator(host: Host, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(OBSERVED)
    done = host.run([sys.executable, str(tmp_path / "train.py"), str(tmp_path / "et.json")], OneOrder(1, WINDOW))
    assert (done.returncode, done.stdout) == (0, "80\n"), done.stderr
    (worker,) = host.workers.values()
    assert worker.results[-1].status == DONE


SMALL_FILES = """
import resource, signal, sys, torch
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), int(sys.argv[1])))
p = torch.nn.Parameter(torch.ones(4)); p.grad = torch.ones(4)
optimizer = torch.optim.SGD([p], 1e-3)
for _ in range(60): optimizer.step()
print(p.sum().item())
"""


@pytest.mark.parametrize("limit", ["4096", "30000"])
def test_a_low_limit_of_file_sizes_ends_no_training(limit: str, host: Host, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(SMALL_FILES)
    done = host.run([sys.executable, str(program), limit])
    assert (done.returncode, done.stderr) == (0, "") and float(done.stdout) > 0


FEW_FILES = """
import os, resource, sys, time, torch
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
p = torch.nn.Parameter(torch.ones(4)); p.grad = torch.ones(4)
optimizer = torch.optim.SGD([p], 1e-3)
for number in range(80):
    optimizer.step(); time.sleep(0.005)
    if number == 12:
        used = len(os.listdir("/proc/self/fd")) - 1
        resource.setrlimit(resource.RLIMIT_NOFILE, (used, most))
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
print(p.sum().item())
"""


def test_without_a_free_descriptor_no_window_is_opened_and_nothing_is_said(host: Host, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(FEW_FILES)
    done = host.run([sys.executable, str(program)], OneOrder(1, WINDOW))
    assert (done.returncode, done.stderr) == (0, "")
    (worker,) = host.workers.values()
    assert "files" in worker.results[-1].note


MANY_OPERATORS = """
import torch
model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(60)])
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
for _ in range(150):
    optimizer.zero_grad(); model(torch.ones(4, 8)).sum().backward(); optimizer.step()
print("ended")
"""


class GivenUp(OneOrder):
    """An order whose directory goes as soon as the trace is being written."""

    def __call__(self, host: Host) -> None:
        super().__call__(host)
        if any(host.root.rglob("trace.json*")):
            shutil.rmtree(host.root / "scratch", ignore_errors=True)


def test_a_window_that_is_given_up_while_it_is_saved_leaves_no_word(host: Host, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(MANY_OPERATORS)
    done = host.run([sys.executable, str(tmp_path / "train.py")], GivenUp(1, WINDOW, length=60))
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")
    (worker,) = host.workers.values()
    assert worker.results[-1].status == ORDER_FAILED
    assert not list(tmp_path.glob(f"{SAVING_PREFIX}*"))


LEFT = """
import gc, time, torch, weakref
gc.disable()
def train(iterations, loaders):
    model = torch.nn.Linear(32, 32); optimizer = torch.optim.Adam(model.parameters())
    loader = torch.utils.data.DataLoader(torch.ones(iterations, 4, 32), batch_size=None, num_workers=loaders)
    for x in loader:
        optimizer.zero_grad(); loss = model(x).sum(); loss.backward(); optimizer.step(); time.sleep(0.005)
    return [weakref.ref(one) for one in (model, optimizer, loader, *model.parameters(), x, loss)]
first = train(100, 0)
gc.collect()  # torch's first step leaves a cycle
print([one() is None for one in first + train(30, 1)])
"""


def test_objects_of_the_training_live_no_longer_than_alone(host: Host, tmp_path: Path) -> None:
    """An optimizer that we keep holds its state and the model's parameters."""
    (tmp_path / "train.py").write_text(LEFT)
    done = host.run([sys.executable, str(tmp_path / "train.py")], OneOrder(1, WINDOW), limit_s=200)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{[True] * 14}\n", "")
    (worker,) = host.workers.values()
    assert worker.results[-1].status == DONE
