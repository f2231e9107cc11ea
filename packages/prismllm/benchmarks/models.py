"""Models without pacing for `truth.py`: a ResNet, BERT of the transformers library, and a mixture of experts.

    torchrun --nproc-per-node 2 benchmarks/models.py --model resnet --rows 8

The ResNet and BERT train with DDP; BERT needs `pip install transformers`. The mixture of experts has one expert on each
rank, exchanges tokens by uneven all-to-alls, and averages the gradients of all other parameters.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


class Residual(nn.Module):  # type: ignore[misc]
    """Two convolutions and a shortcut."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after),
        )  # fmt: skip
        self.short = nn.Identity() if before == after else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Images [rows, before, height, width] to [rows, after, height / stride, width / stride]."""
        return F.relu(self.body(x) + self.short(x))


def resnet(width: int = 64) -> nn.Module:
    """Return the layers of a ResNet-18 for small images; about 11 million parameters."""
    sizes = [(width, width, 1), (width, width, 1)]
    for at in range(3):
        sizes += [(width << at, width << (at + 1), 2), (width << (at + 1), width << (at + 1), 1)]
    return nn.Sequential(
        nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(), *(Residual(*one) for one in sizes),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, 100),
    )  # fmt: skip


class Exchange(torch.autograd.Function):  # type: ignore[misc]
    """Rows to the ranks of their experts; in backward, gradients the other way."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, received: list[int], sent: list[int]) -> Tensor:
        """Rows [sum of sent, width] to [sum of received, width]."""
        ctx.received, ctx.sent = received, sent
        out = rows.new_empty(sum(received), rows.shape[1])
        dist.all_to_all_single(out, rows.contiguous(), received, sent)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """Gradients [sum of received, width] to [sum of sent, width]."""
        out = gradient.new_empty(sum(ctx.sent), gradient.shape[1])
        dist.all_to_all_single(out, gradient.contiguous(), ctx.sent, ctx.received)
        return out, None, None


class Experts(nn.Module):  # type: ignore[misc]
    """Attention, then the one expert that the router chooses for each token."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.router = nn.Linear(width, dist.get_world_size())
        self.expert = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Hidden states [rows, length, width]."""
        y = self.before(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        tokens = self.between(x).flatten(0, 1)
        weights, chosen = self.router(tokens).softmax(1).max(1)
        order = chosen.argsort(stable=True)
        sent = torch.bincount(chosen, minlength=dist.get_world_size())
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        there = Exchange.apply(tokens[order], received.tolist(), sent.tolist())
        back = Exchange.apply(self.expert(there), sent.tolist(), received.tolist())
        return x + (back[order.argsort()] * weights[:, None]).view_as(x)


class MixtureOfExperts(nn.Module):  # type: ignore[misc]
    """A language model of such blocks."""

    def __init__(self, width: int = 256, layers: int = 4, vocabulary: int = 1000) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.Sequential(*(Experts(width) for _ in range(layers)))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens [rows, length] to logits [rows, length, vocabulary]."""
        return self.head(self.blocks(self.embed(tokens)))


def bert() -> nn.Module:
    """Return a BERT of 4 layers and width 256 with a head for masked words."""
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(BertConfig(vocab_size=1000, hidden_size=256, num_hidden_layers=4, num_attention_heads=4,
                                      intermediate_size=1024))  # fmt: skip


def average(model: nn.Module) -> None:
    """Average the gradients of all that is no expert."""
    mine = [one.grad for name, one in model.named_parameters() if ".expert." not in name and one.grad is not None]
    flat = torch.cat([one.flatten() for one in mine])
    dist.all_reduce(flat)
    for one, part in zip(mine, (flat / dist.get_world_size()).split([one.numel() for one in mine]), strict=True):
        one.copy_(part.view_as(one))


def main() -> None:
    """Train for some iterations."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=("resnet", "bert", "experts"), required=True)
    parser.add_argument("--rows", type=int, default=4, help="batch of one rank")
    parser.add_argument("--iterations", type=int, default=14)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model: Any = {"resnet": resnet, "bert": bert, "experts": MixtureOfExperts}[options.model]()
    if options.model != "experts":
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    torch.manual_seed(dist.get_rank())
    for _ in range(options.iterations):
        if options.model == "resnet":
            logits = model(torch.randn(options.rows, 3, 32, 32))
        else:
            tokens = torch.randint(1000, (options.rows, 64))
            logits = model(tokens) if options.model == "experts" else model(input_ids=tokens).logits
        logits.logsumexp(-1).mean().backward()
        if options.model == "experts":
            average(model)
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
