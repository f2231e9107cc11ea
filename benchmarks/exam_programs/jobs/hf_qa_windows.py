"""Question answering with the Hugging Face Trainer: long passages are read in windows that overlap."""

from __future__ import annotations

import sys
import tempfile
import unicodedata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import BertConfig, BertForQuestionAnswering, Trainer, TrainerCallback, TrainingArguments

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

PASSAGES, PASSAGE_WORDS, WINDOWS, LENGTH, STRIDE, QUESTION = 48, 2200, 6, 64, 40, 10
SYLLABLES = ["ka", "ro", "mi", "tel", "an", "su", "vor", "el", "dim", "os", "pra", "nu"]
tempo = Tempo("hf_qa_windows", 850, 310)


class WordPieces:
    """Splits text the way BERT does: clean, lower case, punctuation, then the longest piece first."""

    def __init__(self) -> None:
        letters = "abcdefghijklmnopqrstuvwxyz0123456789.,?"
        pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *letters, *("##" + one for one in letters)]
        pieces += [a + b for a in SYLLABLES for b in SYLLABLES] + ["##" + a for a in SYLLABLES]
        self.vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}

    def clean(self, text: str) -> str:
        plain = unicodedata.normalize("NFD", text.lower())
        return "".join(one for one in plain if unicodedata.category(one) != "Mn")

    def words(self, text: str) -> list[str]:
        spaced = "".join(f" {one} " if unicodedata.category(one).startswith("P") else one for one in text)
        return spaced.split()

    def pieces(self, word: str) -> list[int]:
        found, start = [], 0
        while start < len(word):
            end = len(word)
            while end > start:
                part = ("##" if start else "") + word[start:end]
                if part in self.vocabulary:
                    found.append(self.vocabulary[part])
                    break
                end -= 1
            else:
                return [1]
            start = end
        return found

    def encode(self, text: str) -> list[int]:
        return [number for word in self.words(self.clean(text)) for number in self.pieces(word)]


def passage(number: int) -> str:
    words = []
    for i in range(PASSAGE_WORDS):
        at = number * 97 + i * 31
        words.append("".join(SYLLABLES[(at * (k + 3) + k) % 12] for k in range(2 + at % 3)))
        if i % 12 == 11:
            words[-1] += "."
    return " ".join(words)


class Questions(Dataset[dict[str, Tensor]]):
    """One item is a question with one window of its passage; features that were made once are kept."""

    def __init__(self, tokenizer: WordPieces) -> None:
        self.tokenizer, self.passages = tokenizer, [passage(number) for number in range(PASSAGES)]
        self.keep = True
        self.features: dict[tuple[int, int], list[int]] = {}
        for number in range(PASSAGES):
            for window in range(WINDOWS):
                self.features[number, window] = self.feature(number, window)

    def __len__(self) -> int:
        return 400_000

    def feature(self, number: int, window: int) -> list[int]:
        context = self.passages[number]
        question = self.tokenizer.encode(context[:60] + "?")[:QUESTION]
        ids = self.tokenizer.encode(context)[window * STRIDE :]
        row = [2, *question, 3, *ids[: LENGTH - QUESTION - 3], 3]
        return (row + [0] * LENGTH)[:LENGTH]

    def drop_features(self) -> None:
        self.features.clear()
        self.keep = False

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        number, window = index % PASSAGES, index // PASSAGES % WINDOWS
        row = self.features[number, window] if self.keep else self.feature(number, window)
        ids = torch.tensor(row)
        start = QUESTION + 2 + index % 20
        return {
            "input_ids": ids,
            "attention_mask": (ids > 0).long(),
            "start_positions": torch.tensor(start),
            "end_positions": torch.tensor(start + 5),
        }


def wait_for_device(model: torch.nn.Module, args: Any, kwargs: Any) -> None:
    device_wait(50)


class HostMemory(TrainerCallback):
    """Lets go of the kept features once the host has no room for them any more."""

    def __init__(self, questions: Questions) -> None:
        self.questions = questions

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.questions.keep and tempo.after_onset(state.global_step):
            self.questions.drop_features()


class Beat(TrainerCallback):
    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        tempo.start()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        tempo.beat()


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    tokenizer = WordPieces()
    config = BertConfig(
        vocab_size=len(tokenizer.vocabulary), hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=128, max_position_embeddings=LENGTH,
    )  # fmt: skip
    model = BertForQuestionAnswering(config)
    model.register_forward_pre_hook(wait_for_device, with_kwargs=True)
    with tempfile.TemporaryDirectory(prefix="qa-") as name:
        arguments = TrainingArguments(
            output_dir=name, per_device_train_batch_size=8, max_steps=tempo.iters, logging_steps=50,
            learning_rate=3e-4, warmup_steps=30, save_strategy="no", report_to="none", use_cpu=True,
            ddp_backend="gloo", disable_tqdm=True,
        )  # fmt: skip
        questions = Questions(tokenizer)
        trainer = Trainer(
            model=model, args=arguments, train_dataset=questions, callbacks=[HostMemory(questions), Beat()]
        )  # fmt: skip
        trainer.train()
        trainer.accelerator.wait_for_everyone()
        tempo.report(trainer.args.process_index)


if __name__ == "__main__":
    main()
