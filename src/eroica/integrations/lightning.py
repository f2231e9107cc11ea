"""Eroica as a callback of Lightning's Trainer.

    Trainer(callbacks=[EroicaCallback()])

Iteration times and verdicts go to all of the trainer's loggers. Works with `lightning` and with `pytorch_lightning`,
whichever the training has imported.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from eroica.integrations.news import Companion, News

__all__ = ["EroicaCallback"]

if TYPE_CHECKING:
    _Callback = Any
elif "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
    from pytorch_lightning import Callback as _Callback
else:
    from lightning.pytorch import Callback as _Callback

_TAG = "eroica.verdict"


class EroicaCallback(_Callback):  # type: ignore[misc]
    """Watches the training and logs what is found. Never raises into it.

    Args:
        **settings: Any of `eroica settings`; under `eroica run` give them to that instead.

    Raises:
        UsageError: A setting is unknown or has an impossible value.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self._companion = Companion(settings)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Begin to watch, in each process, before the first step."""
        self._companion.begin(speaks=stage == "fit" and bool(trainer.is_global_zero))

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Log what is new."""
        self._companion.tell(lambda news: _log(trainer, news))

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Log what came last; the job's final verdict comes after the training's process."""
        self._companion.tell(lambda news: _log(trainer, news), at_the_end=True)


def _log(trainer: Any, news: News) -> None:
    for logger in trainer.loggers:
        logger.log_metrics(dict(news.numbers), step=trainer.global_step)
        if news.verdict:
            _write_sentence(logger, news.verdict, trainer.global_step)


def _write_sentence(logger: Any, verdict: str, step: int) -> None:
    """The verdict's sentence, where a logger's tracker takes texts."""
    kind = type(logger).__name__
    if kind == "TensorBoardLogger":
        logger.experiment.add_text(_TAG, verdict, step)
    elif kind == "MLFlowLogger":
        logger.experiment.set_tag(logger.run_id, _TAG, verdict)
    elif kind == "WandbLogger":
        logger.experiment.summary[_TAG] = verdict
