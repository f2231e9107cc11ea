import numpy as np
import pytest
from synthetic_window import BACKWARD, HOOK, LOADER, SCRIPT, STEP, TRAINING, Events

from eroica.summarize.phases import PHASES, find_parts, phases_at, stack_phase
from eroica.trace.table import Category


def phases_of(events, names):
    table = events.table()
    rows = np.flatnonzero(table.category == Category.OPERATOR)
    phase = phases_at(table.start_ns[rows], find_parts(table, TRAINING))
    found = {table.name_of(row): PHASES[number] for row, number in zip(rows, phase, strict=True)}
    return [found[name] for name in names]


def iteration(events):
    events.note("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 0, 10).add("aten::stack", 2, 4)
    events.add("aten::mm", 20, 30).add("aten::loss", 34, 36)
    events.note("Optimizer.zero_grad#AdamW.zero_grad", 37, 39).add("aten::zero_", 37, 39)
    events.add("autograd::engine::evaluate_function: MmBackward0", 40, 60).add("aten::mm_backward", 45, 50)
    events.note("Optimizer.step#AdamW.step", 70, 80).add("aten::mul_", 72, 73)
    return events.add("aten::item", 90, 91)


def test_annotations_say_what_part_an_operator_belongs_to():
    events = iteration(Events()).note("DistributedDataParallel.forward", 15, 32)
    names = ["aten::stack", "aten::mm", "aten::loss", "aten::zero_", "aten::mm_backward", "aten::mul_", "aten::item"]
    expected = ["input", "forward", "other", "optimizer", "backward", "optimizer", "other"]
    assert phases_of(events, names) == expected


def test_without_a_wrapped_model_forward_is_what_a_backward_pass_follows():
    events = Events().note("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 10)
    events.add("aten::mm", 20, 30).add("autograd::engine::evaluate_function: MmBackward0", 40, 60)
    events.note("Optimizer.step#SGD.step", 70, 80).add("aten::item", 90, 91)
    assert phases_of(events, ["aten::mm", "aten::item"]) == ["forward", "other"]


@pytest.mark.parametrize("wrapped", [False, True])
def test_forward_and_backward_in_a_closure_are_no_part_of_the_optimizer(wrapped):
    events = Events().note("Optimizer.step#LBFGS.step", 0, 100).add("aten::norm", 70, 72).add("aten::add_", 90, 92)
    for begin in (10, 40):
        events.add("aten::mm", begin, begin + 5)
        events.add("autograd::engine::evaluate_function: MmBackward0", begin + 8, begin + 20)
        events.add("aten::mm_backward", begin + 10, begin + 12)
        if wrapped:
            events.note("DistributedDataParallel.forward", begin - 1, begin + 6)
    names = ["aten::mm", "aten::mm_backward", "aten::norm", "aten::add_"]
    assert phases_of(events, names) == ["forward", "backward", "optimizer", "optimizer"]


def test_a_step_in_a_hook_of_the_backward_pass_stays_the_optimizers():
    events = Events().add("aten::mm", 2, 4).add("autograd::engine::evaluate_function: MmBackward0", 10, 60)
    events.note("Optimizer.step#SGD.step", 20, 30).add("aten::add_", 22, 24)
    events.add("autograd::engine::evaluate_function: AccumulateGrad", 25, 27, thread=999)
    assert phases_of(events, ["aten::mm", "aten::add_"]) == ["forward", "optimizer"]


MODULE = "Module._call_impl (torch/nn/modules/module.py:1782)"


@pytest.mark.parametrize(
    ("stack", "phase"),
    [
        ((SCRIPT, STEP, *LOADER), "input"),
        ((SCRIPT, STEP, "_BaseDataLoaderIter.__next__ (torch/utils/data/dataloader.py:720)", MODULE), "input"),
        ((SCRIPT, STEP, *BACKWARD), "backward"),
        ((SCRIPT, STEP, *BACKWARD, HOOK), "backward"),
        ((SCRIPT, STEP, *BACKWARD, MODULE), "backward"),
        ((SCRIPT, STEP, MODULE, "Model.forward (project/model.py:3)"), "forward"),
        ((SCRIPT, "DistributedDataParallel.forward (torch/nn/parallel/distributed.py:1884)"), "forward"),
        ((SCRIPT, STEP, "Optimizer.zero_grad (torch/optim/optimizer.py:900)"), "optimizer"),
        ((SCRIPT, "AdamW.step (torch/optim/adam.py:220)", "_fused (torch/optim/adam.py:700)"), "optimizer"),
        ((SCRIPT, "LBFGS.step (torch/optim/lbfgs.py:330)", "closure (train.py:9)", *BACKWARD), "backward"),
        ((SCRIPT, "LBFGS.step (torch/optim/lbfgs.py:330)", "closure (train.py:9)", MODULE), "forward"),
        ((SCRIPT, "LBFGS.step (torch/optim/lbfgs.py:330)", "closure (train.py:9)"), "optimizer"),
        ((SCRIPT, STEP, *BACKWARD, "hook (train.py:5)", "SGD.step (torch/optim/sgd.py:100)"), "backward"),
        ((SCRIPT, STEP, "backward (project/planner.py:3)"), "other"),
        ((SCRIPT, "__next__ (project/loader.py:9)"), "other"),
        ((SCRIPT,), "other"),
        ((), "other"),
        (("main (train.py:3)", "DataLoader.__iter__ (torch/utils/data/dataloader.py:492)"), "input"),
        (("main (train.py:3)", "_MultiProcessingDataLoaderIter.__del__ (torch/utils/data/dataloader.py:1)"), "input"),
        (("main (train.py:3)", "DataLoader.__init__ (torch/utils/data/dataloader.py:200)"), "other"),
    ],
)
def test_the_outermost_known_frame_says_what_part_a_stack_belongs_to(stack, phase):
    assert stack_phase(stack) == phase
