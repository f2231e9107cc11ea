"""Judges one answer: strict admission, then a fresh sandbox in which it runs and is checked."""

from __future__ import annotations

import itertools
import os
import time
from types import SimpleNamespace

from cloudeval.errors import CloudEvalError, NotCoveredError, ReadError, RunnerError
from cloudeval.problems import Variant, check_function
from cloudeval.reading import read
from cloudeval.records import RIGHT, UNJUDGED, WRONG, Verdict
from cloudeval.runners import sandbox
from cloudeval.runners.cluster import Cluster
from cloudeval.runners.envoy import Proxy
from cloudeval.runners.expectations import CheckFailedError, Checks
from cloudeval.schema import Fault

#: How often a test is run at most when the machine fails.
ATTEMPTS = 3
_numbers = itertools.count()


def judge(variant: Variant, text: str, *, attempts: int = ATTEMPTS) -> Verdict:
    """Return the verdict on an answer. A failure of the machine is repeated, then reported as unjudged."""
    started = time.monotonic()
    verdict = _refused(variant, text)
    attempt = 1
    while verdict is None:
        verdict = _run(variant, text)
        if verdict.outcome == UNJUDGED and verdict.how == "runner" and attempt < attempts:
            attempt, verdict = attempt + 1, None
    return Verdict(
        verdict.outcome, verdict.how, verdict.reason, round(time.monotonic() - started, 3), attempt, verdict.faults
    )


def _wrong(faults: list[Fault]) -> Verdict:
    how = "yaml" if faults[0].check == "yaml" else "admission"
    return Verdict(WRONG, how, str(faults[0]), faults=[str(fault) for fault in faults])


def _refused(variant: Variant, text: str) -> Verdict | None:
    """Judge what needs no sandbox: text that cannot be read, or an object that is refused in itself."""
    if variant.runner == "envoy":
        faults = Proxy.admit(text)
        return _wrong(faults) if faults else None
    try:
        documents = read(text)
    except ReadError as error:
        return _wrong([Fault("", str(error), "yaml")])
    if not documents:
        return _wrong([Fault("", "the answer holds no object", "yaml")])
    cluster = Cluster(nodes=variant.nodes)
    if variant.given:
        cluster.apply(variant.given)
    faults = cluster.admit(text)
    if faults:
        return _wrong(faults)
    if variant.runner == "semantics":
        return _checked(variant, cluster)
    return None


def _run(variant: Variant, text: str) -> Verdict:
    if reason := sandbox.can_run():
        return Verdict(UNJUDGED, "skipped", reason)
    name = f"{os.getpid()}-{next(_numbers)}"
    ended = sandbox.run(lambda name: _inside(variant, text, name), name, variant.timeout_s)
    if ended.timed_out:
        return Verdict(UNJUDGED, "runner", ended.error or "")
    if ended.error is not None:
        return Verdict(UNJUDGED, "runner", ended.error)
    verdict: Verdict = ended.value
    return verdict


def _inside(variant: Variant, text: str, name: str) -> Verdict:
    """Run and check an answer: this is process 1 of the sandbox."""
    if variant.runner == "envoy":
        proxy = Proxy(name, text)
        if refusal := proxy.start():
            return Verdict(WRONG, "admission", f"Envoy refuses the configuration: {refusal}", faults=[refusal])
        return _checked(variant, proxy)
    cluster = Cluster(name, nodes=variant.nodes, seed=variant.seed)
    if variant.given:
        cluster.apply(variant.given)
        for _ in range(3):
            cluster.step()
    if faults := cluster.admit(text):
        return _wrong(faults)
    return _checked(variant, cluster)


def _checked(variant: Variant, api: Checks) -> Verdict:
    check = check_function(variant)
    try:
        check(api, SimpleNamespace(**variant.variables))
    except CheckFailedError as failure:
        return Verdict(WRONG, api.how, str(failure))
    except NotCoveredError as error:
        hostile = "sandbox" in str(error)
        return Verdict(UNJUDGED, "hostile" if hostile else "not covered", str(error))
    except RunnerError:
        raise
    except CloudEvalError as error:
        return Verdict(UNJUDGED, "problem", str(error))
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        line = _line_of(error)
        return Verdict(
            WRONG,
            api.how,
            f"the check cannot find what it needs: {type(error).__name__} {error}"
            + (f" (check.py line {line})" if line else ""),
        )
    return Verdict(RIGHT, "behaviour" if api.saw_behaviour else "semantics")


def _line_of(error: BaseException) -> int | None:
    trace, line = error.__traceback__, None
    while trace:
        if trace.tb_frame.f_code.co_filename.endswith("check.py"):
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
