"""Tests generated cloud configuration by running it.

    from cloudeval import draw, judge, load
    variant = draw(load(only="pod-web")[0], seed=7)
    print(judge(variant, open("answer.yaml").read()))

Names are imported when they are used, since pytest loads the package's plugin in every run.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cloudeval.cleaning import clean
    from cloudeval.errors import CloudEvalError
    from cloudeval.judging import judge
    from cloudeval.match import Reference
    from cloudeval.metrics import measure, pass_at_k
    from cloudeval.problems import Problem, Variant, draw, load
    from cloudeval.records import Result, Verdict

__all__ = [
    "CloudEvalError",
    "Problem",
    "Reference",
    "Result",
    "Variant",
    "Verdict",
    "clean",
    "draw",
    "judge",
    "load",
    "measure",
    "pass_at_k",
]
_HOMES = {
    "CloudEvalError": "errors",
    "Reference": "match",
    "clean": "cleaning",
    "judge": "judging",
    **dict.fromkeys(("measure", "pass_at_k"), "metrics"),
    **dict.fromkeys(("Problem", "Variant", "draw", "load"), "problems"),
    **dict.fromkeys(("Result", "Verdict"), "records"),
}


def __getattr__(name: str) -> Any:
    """Import a public name from its module."""
    if name not in _HOMES:
        raise AttributeError(f"cloudeval has no {name}")
    value = getattr(importlib.import_module(f"cloudeval.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
