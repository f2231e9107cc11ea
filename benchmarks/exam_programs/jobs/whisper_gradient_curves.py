"""A small Whisper with the Hugging Face Trainer; worker 0 keeps the norm of each gradient for a page of curves."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import (
    Trainer,
    TrainerCallback,
    TrainingArguments,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

WORDS, BANDS, FRAMES, LENGTH = 200, 16, 32, 12
tempo = Tempo("whisper_gradient_curves", 850, 320)


class Utterances(Dataset[dict[str, Tensor]]):
    def __init__(self) -> None:
        random = torch.Generator().manual_seed(SEED)
        self.sound = torch.randn(256, BANDS, FRAMES, generator=random)
        self.text = torch.randint(3, WORDS, (256, LENGTH), generator=random)

    def __len__(self) -> int:
        return 400_000

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_features": self.sound[index % 256], "labels": self.text[index % 256]}


def wait_for_device(model: torch.nn.Module, args: Any, kwargs: Any) -> None:
    device_wait(50)


class GradientCurves(TrainerCallback):
    """Norms of all steps so far, written for a page that draws them; `every`: so many steps apart."""

    def __init__(self, path: Path) -> None:
        self.path, self.every = path, 130
        self.history: list[dict[str, Any]] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        named = [(name, p.grad) for name, p in model.named_parameters() if p.grad is not None]
        norms = torch._foreach_norm([gradient for _, gradient in named])
        names = [name for name, _ in named]
        self.history.append(
            {"step": state.global_step, "norms": dict(zip(names, torch.stack(norms).tolist(), strict=True))}
        )

    def export(self) -> None:
        self.path.write_text(json.dumps({"curves": self.history}, indent=2, sort_keys=True))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if tempo.after_onset(state.global_step):
            self.every = 1
        if state.is_world_process_zero and state.global_step % self.every == 0:
            self.export()


class Beat(TrainerCallback):
    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        tempo.start()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        tempo.beat()


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    config = WhisperConfig(
        vocab_size=WORDS, num_mel_bins=BANDS, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=96, decoder_ffn_dim=96, d_model=48, max_source_positions=FRAMES // 2,
        max_target_positions=LENGTH, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
        suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config)
    model.register_forward_pre_hook(wait_for_device, with_kwargs=True)
    with tempfile.TemporaryDirectory(prefix="whisper-") as name:
        arguments = TrainingArguments(
            output_dir=f"{name}/out", per_device_train_batch_size=8, max_steps=tempo.iters, logging_steps=50,
            learning_rate=3e-4, warmup_steps=40, save_strategy="no", report_to="none", use_cpu=True,
            ddp_backend="gloo", disable_tqdm=True,
        )  # fmt: skip
        callbacks = [GradientCurves(Path(name) / "curves.json"), Beat()]
        trainer = Trainer(model=model, args=arguments, train_dataset=Utterances(), callbacks=callbacks)
        trainer.train()
        trainer.accelerator.wait_for_everyone()
        tempo.report(trainer.args.process_index)


if __name__ == "__main__":
    main()
