"""PrismLLM: rehearse a distributed training of thousands of workers on a few.

    from prismllm import Rehearsal

    rehearsal = Rehearsal.open("capture/")
    print(rehearsal.predict())
    print(rehearsal.predict("slow rank=713 by=1.5 from=2"))

An independent implementation of the idea of PrismLLM (arXiv 2605.15617); docstrings say where it is followed.
"""

from prismllm.errors import PrismError
from prismllm.rehearsal import Prediction, Rehearsal

__all__ = ["Prediction", "PrismError", "Rehearsal"]
