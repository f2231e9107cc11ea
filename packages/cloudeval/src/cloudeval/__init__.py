"""Tests generated cloud configuration by running it.

from cloudeval import draw, judge, load
variant = draw(load(only="pod-web")[0], seed=7)
print(judge(variant, open("answer.yaml").read()))
"""

from cloudeval.clean import clean
from cloudeval.errors import CloudEvalError
from cloudeval.judge import judge
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
