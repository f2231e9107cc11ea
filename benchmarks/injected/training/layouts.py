"""How the model is spread over the workers: copies of it, shards of it, or stages of it."""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from eroica.demo.training.model import LanguageModel, ModelSize, next_token_loss


class Layout(Protocol):
    """One worker's part of the training.

    Attributes:
        module: What this worker trains.
        data_number: Which part of the data it reads; equal on the stages of one pipeline.
        data_parts: Into how many parts the data is divided.
        reads_data: Whether it needs a loader at all.
    """

    module: nn.Module
    data_number: int
    data_parts: int
    reads_data: bool

    def run(self, tokens: Tensor | None, train: bool, last_of_step: bool) -> float | None:
        """Forward (and backward, if `train`) of one batch; the loss where it is known.

        Args:
            tokens: int64 [batch, length + 1], None on workers without a loader.
            train: Also run backward.
            last_of_step: The optimizer steps after this one: gradients must be exchanged.
        """
        ...


class CopiedModel:
    """`DistributedDataParallel`: every worker has all of the model."""

    reads_data = True

    serial = False

    def __init__(
        self, size: ModelSize, device: torch.device, accumulate: int, bucket_mb: float = 25.0, serial: bool = False
    ) -> None:
        self.module: nn.Module = DistributedDataParallel(LanguageModel(size).to(device), bucket_cap_mb=bucket_mb)
        self.device = device
        self.serial = serial
        self.accumulate = accumulate
        self.data_number, self.data_parts = dist.get_rank(), dist.get_world_size()

    def run(self, tokens: Tensor | None, train: bool, last_of_step: bool) -> float | None:
        """See `Layout.run`; gradients are exchanged only in the last batch of a step."""
        assert tokens is not None
        tokens = tokens.to(self.device)
        self._exchange_gradients(last_of_step and not self.serial)
        with torch.set_grad_enabled(train):
            loss = next_token_loss(self.module(tokens[:, :-1]), tokens)
        if train:
            (loss / self.accumulate).backward()
        if train and last_of_step and self.serial:
            self._exchange_in_turn()
        return float(loss.detach())

    def _exchange_gradients(self, needed: bool) -> None:
        self.module.require_backward_grad_sync = needed

    def _exchange_in_turn(self) -> None:
        """One gradient after the other, when all of backward is over."""
        for weight in self.module.parameters():
            if weight.grad is not None:
                dist.all_reduce(weight.grad)
                weight.grad /= self.data_parts


class ShardedModel(CopiedModel):
    """FSDP2 (`fully_shard`): every worker has a shard of each block."""

    def __init__(self, size: ModelSize, device: torch.device, accumulate: int) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        model = LanguageModel(size).to(device)
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        self.module = fully_shard(model, mesh=mesh)
        self.device = device
        self.accumulate = accumulate
        self.data_number, self.data_parts = dist.get_rank(), dist.get_world_size()

    def _exchange_gradients(self, needed: bool) -> None:
        self.module.set_requires_gradient_sync(needed)


class PipelinedModel:
    """Two stages with `torch.distributed.pipelining`; several pipelines exchange gradients per stage.

    Even ranks are first stages and read the data; odd ranks are last stages, have no loader, and get the targets
    from their first stage.
    """

    microbatches = 2

    def __init__(
        self, size: ModelSize, device: torch.device, accumulate: int, batch: int, first_layers: int = 0
    ) -> None:
        rank, workers = dist.get_rank(), dist.get_world_size()
        if workers % 2 or batch % self.microbatches:
            raise SystemExit(f"--layout pipeline needs an even number of workers and batch, not {workers} and {batch}")
        self.stage = rank % 2
        self.reads_data = self.stage == 0
        self.data_number, self.data_parts = rank // 2, workers // 2
        self.device, self.accumulate, self.size, self.batch = device, accumulate, size, batch
        self._pairs = [dist.new_group([first, first + 1]) for first in range(0, workers, 2)]
        self._stages = [dist.new_group(list(range(stage, workers, 2))) for stage in range(2)]
        self.pair = self._pairs[self.data_number]
        first_layers = first_layers or size.layers - size.layers // 2
        layers = first_layers if self.stage == 0 else size.layers - first_layers
        self.module: nn.Module = LanguageModel(size, layers, first=self.stage == 0, last=self.stage == 1).to(device)
        self.schedule = self._make_schedule()

    def _make_schedule(self) -> Any:
        from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

        stage = PipelineStage(self.module, self.stage, 2, self.device, group=self.pair)
        return ScheduleGPipe(stage, self.microbatches, loss_fn=self._loss, scale_grads=False)

    def _loss(self, logits: Tensor, tokens: Tensor) -> Tensor:
        return next_token_loss(logits, tokens) / (self.microbatches * self.accumulate)

    def run(self, tokens: Tensor | None, train: bool, last_of_step: bool) -> float | None:
        """See `Layout.run`; the loss is known on last stages."""
        step = self.schedule.step if train else self.schedule.eval
        loss = self._run_stage(step, tokens)
        if train and last_of_step and self.data_parts > 1:
            self._average_gradients()
        return loss

    def _run_stage(self, step: Any, tokens: Tensor | None) -> float | None:
        if self.stage == 0:
            assert tokens is not None
            tokens = tokens.to(self.device)
            dist.send(tokens, group=self.pair, group_dst=1)
            step(tokens[:, :-1])
            return None
        targets = torch.empty((self.batch, self.size.length + 1), dtype=torch.int64, device=self.device)
        dist.recv(targets, group=self.pair, group_src=0)
        losses: list[Tensor] = []
        step(target=targets, losses=losses)
        return float(sum(float(loss.detach()) for loss in losses)) * self.accumulate

    def _average_gradients(self) -> None:
        gradients = [weight.grad for weight in self.module.parameters()]
        together = torch.cat([gradient.flatten() for gradient in gradients]) / self.data_parts
        dist.all_reduce(together, group=self._stages[self.stage])
        for gradient, mean in zip(gradients, together.split([gradient.numel() for gradient in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient))


def make_layout(
    name: str,
    size: ModelSize,
    device: torch.device,
    accumulate: int,
    batch: int,
    bucket_mb: float = 25.0,
    first_layers: int = 0,
    serial: bool = False,
) -> Layout:
    """The layout called "ddp", "fsdp2" or "pipeline".

    Args:
        name: Which.
        size: Of the whole model.
        device: Where it computes.
        accumulate: Batches of an optimizer step.
        batch: Sequences of a batch.
        bucket_mb: Gradients that "ddp" exchanges together, in megabytes.
        first_layers: Blocks of the first stage of "pipeline"; 0 = half of them.
        serial: "ddp" exchanges gradients one by one, after backward and not during it.
    """
    if name == "pipeline":
        return PipelinedModel(size, device, accumulate, batch, first_layers)
    if name == "fsdp2":
        return ShardedModel(size, device, accumulate)
    return CopiedModel(size, device, accumulate, bucket_mb, serial)
