"""What torch's compiler makes of a training is the same with us: graphs, their operators, and where it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from watched_jobs import Host, both

from eroica.wire.beat import STATE_NAMES

pytestmark = pytest.mark.jobs

CUSTOM = """
import sys, time, torch
class Sign(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3): super().__init__(params, dict(lr=lr))
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]: p.add_(p.grad.sign(), alpha=-group["lr"])
graphs = []
def backend(graph, inputs):
    graphs.append(sum(node.op == "call_function" or node.op == "call_method" for node in graph.graph.nodes))
    return graph.forward
def parameter():
    p = torch.nn.Parameter(torch.ones(4, 4)); p.grad = torch.full((4, 4), 0.5)
    return p
"""

EVERY = (
    CUSTOM
    + """
types = [kind for kind in vars(torch.optim).values() if isinstance(kind, type)]
kinds = [kind for kind in types if issubclass(kind, torch.optim.Optimizer)]
for kind in [Sign, *(kind for kind in kinds if kind is not torch.optim.Optimizer)]:
    for whole in (True, False):
        torch._dynamo.reset(); graphs.clear()
        p = parameter()
        if kind is torch.optim.SparseAdam: p.grad = p.grad.to_sparse()
        step = torch.compile(kind([p], lr=1e-3).step, fullgraph=whole, backend=backend)
        closure = [lambda: p.sum()] if kind is torch.optim.LBFGS else []
        try:
            for _ in range(2): step(*closure)
            became = p.sum().item().hex()
        except torch._dynamo.exc.Unsupported as error:
            became = str(error).split(chr(10))[0]
        print(kind.__name__, whole, became, graphs, flush=True)
graphs.clear()
loader = torch.utils.data.DataLoader(torch.arange(40.0), batch_size=2)
@torch.compile(backend=backend)
def epoch(total):
    for batch in loader: total = total + batch.sum()
    return total
print(epoch(torch.zeros(())).item(), graphs)
"""
)


@pytest.mark.thorough
def test_every_optimizer_of_torch_and_a_loop_over_a_loader_compile_as_they_do_without_us(
    host: Host, tmp_path: Path
) -> None:
    host, _ = both(host, tmp_path, EVERY, limit_s=120)
    assert host.workers  # some of them step where they are not compiled


WHOLE = (
    CUSTOM
    + """
p = parameter()
step = torch.compile(Sign([p]).step, fullgraph=True, backend=backend)
for _ in range(60): step(); time.sleep(0.002)
print(len(graphs))
"""
)


def test_steps_that_are_compiled_whole_are_counted(host: Host, tmp_path: Path) -> None:
    done = host.run_python(tmp_path, WHOLE)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    (worker,) = host.workers.values()
    assert (worker.beats[-1].iteration, STATE_NAMES[worker.beats[-1].state]) == (60, "finished")


IN_A_FUNCTION = (
    CUSTOM
    + """
optimizers = [Sign([parameter()]), torch.optim.AdamW([parameter()])]
@torch.compile(backend=backend)
def train():
    for one in optimizers: one.step()
for _ in range(40): train(); time.sleep(0.002)
"""
)


def test_several_optimizers_in_a_compiled_function_make_iterations(host: Host, tmp_path: Path) -> None:
    done = host.run_python(tmp_path, IN_A_FUNCTION)
    assert done.returncode == 0, done.stderr
    (worker,) = host.workers.values()
    assert (worker.beats[-1].iteration, STATE_NAMES[worker.beats[-1].state]) == (40, "finished")


ANNOUNCED = """
import time, torch
import eroica
@torch.compile(fullgraph=True, backend="eager")
def iteration(x):
    eroica.step()
    return x * 2
x = torch.ones(3)
for _ in range(60): iteration(x); time.sleep(0.002)
print("ended")
"""


def test_an_announcement_in_a_compiled_function_is_heard(host: Host, tmp_path: Path) -> None:
    done = host.run_python(tmp_path, ANNOUNCED)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")
    (worker,) = host.workers.values()
    assert worker.beats[-1].iteration == 60
