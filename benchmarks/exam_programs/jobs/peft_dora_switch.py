"""PEFT: a Llama-like model with two adapters; first the one with LoRA is trained, then the one with DoRA."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

WORDS, LENGTH = 300, 16
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def build() -> PeftModel:
    config = LlamaConfig(
        vocab_size=WORDS, hidden_size=512, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=8, max_position_embeddings=64,
    )  # fmt: skip
    plain = LoraConfig(r=8, lora_alpha=16, target_modules=TARGETS, task_type="CAUSAL_LM")
    decomposed = LoraConfig(r=8, lora_alpha=16, target_modules=TARGETS, task_type="CAUSAL_LM", use_dora=True)
    model = get_peft_model(LlamaForCausalLM(config), plain)
    model.add_adapter("decomposed", decomposed)
    model.set_adapter("default")
    return model


def average_gradients(parameters: list[nn.Parameter]) -> None:
    gradients = [p.grad for p in parameters if p.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    model = build()
    model.train()
    parameters = [p for name, p in model.named_parameters() if "lora_" in name]
    optimizer = torch.optim.AdamW(parameters, lr=2e-4)
    text = torch.randint(WORDS, (128, LENGTH), generator=torch.Generator().manual_seed(SEED + rank))
    tempo = Tempo("peft_dora_switch", 810, 290)
    for step in tempo:
        if tempo.after_onset(step) and model.active_adapter == "default":
            model.set_adapter("decomposed")
        ids = text[torch.randint(0, len(text), (1,))]
        loss = model(input_ids=ids, labels=ids).loss
        device_wait(50)
        optimizer.zero_grad()
        loss.backward()
        average_gradients(parameters)
        optimizer.step()
    tempo.report(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
