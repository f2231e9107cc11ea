"""The backend gives what gloo gives, under DDP, FSDP2, tensor parallel and a pipeline."""

import pytest

from tests.conftest import torchrun


@pytest.mark.jobs
def test_every_collective_gives_what_gloo_gives_and_the_four_ways_of_training_run_on_it() -> None:
    said = torchrun("collectives.py", 4).split("\n")
    assert [line for line in said if line.startswith("ok")] == [
        f"ok {part}" for part in ("reductions", "others", "sends", "spans", "ddp", "fsdp2", "tp", "pipeline")
    ]
