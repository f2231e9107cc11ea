"""Eroica as a callback of Hugging Face's Trainer, and of what is built on it (TRL, Sentence Transformers).

    trainer.add_callback(EroicaCallback(trainer))

Iteration times and verdicts go wherever the trainer reports to (`report_to`). They go there by its reporting callbacks,
not by `trainer.log`: trainers gather in that, or empty what they have collected, and here one worker speaks alone.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

from transformers import TrainerCallback

from eroica.integrations.news import Companion, News

__all__ = ["EroicaCallback"]

_TAG = "eroica.verdict"
#: Where the callbacks live that write to trackers.
_REPORTING = "transformers.integrations."


class EroicaCallback(TrainerCallback):  # type: ignore[misc]
    """Watches the training and logs what is found. Never raises into it.

    Args:
        trainer: Numbers and verdicts go to what it reports to; None: the training is only watched.
        **settings: Any of `eroica settings`; under `eroica run` give them to that instead.

    Raises:
        UsageError: A setting is unknown or has an impossible value.
    """

    def __init__(self, trainer: Any = None, **settings: Any) -> None:
        self._trainer = weakref.ref(trainer) if trainer is not None else lambda: None
        self._companion = Companion(settings)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin to watch, before the first step."""
        self._companion.begin(speaks=bool(getattr(state, "is_world_process_zero", True)))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Log what is new; at the last step what there is, as trackers close before the training's end is told to us.

        The job's final verdict comes after the training's process.
        """
        is_last = bool(control.should_training_stop) or 0 < state.max_steps <= state.global_step
        self._companion.tell(self._log, at_the_end=is_last)

    def _log(self, news: News) -> None:
        trainer = self._trainer()
        if trainer is None:
            return
        for callback in trainer.callback_handler.callbacks:
            if not type(callback).__module__.startswith(_REPORTING):
                continue
            callback.on_log(trainer.args, trainer.state, trainer.control, logs=dict(news.numbers), model=trainer.model)
            if news.verdict:
                _write_sentence(callback, news.verdict, trainer.state.global_step)

    def __getstate__(self) -> dict[str, Any]:
        """The trainer is not pickled along."""
        return {"_companion": self._companion}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._companion = state["_companion"]
        self._trainer = lambda: None


def _write_sentence(callback: Any, verdict: str, step: int) -> None:
    """The verdict's sentence, where a reporting callback's tracker takes texts."""
    kind = type(callback).__name__
    if kind == "TensorBoardCallback" and callback.tb_writer is not None:
        callback.tb_writer.add_text(_TAG, verdict, step)
    elif kind == "MLflowCallback":
        sys.modules["mlflow"].set_tag(_TAG, verdict)
    elif kind == "WandbCallback":
        sys.modules["wandb"].run.summary[_TAG] = verdict
