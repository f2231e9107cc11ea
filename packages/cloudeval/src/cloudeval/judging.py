"""Judges one answer: strict admission, then a fresh sandbox in which it runs and is checked."""

import itertools
import os
import time
import traceback
from types import SimpleNamespace

import msgspec

from cloudeval.errors import CloudEvalError, NotCoveredError, RunnerError
from cloudeval.problems import Variant, check_function
from cloudeval.records import RIGHT, UNJUDGED, WRONG, Verdict
from cloudeval.runners import sandbox
from cloudeval.runners.cluster import Cluster
from cloudeval.runners.envoy import Proxy
from cloudeval.runners.expectations import CheckFailedError, Checks
from cloudeval.schema import Fault

#: Greatest number of runs of a test whose machine fails.
ATTEMPTS = 3
_numbers = itertools.count()


def judge(variant: Variant, text: str, *, attempts: int = ATTEMPTS) -> Verdict:
    """Return the verdict on an answer. A failure of the machine is repeated, then reported as unjudged."""
    started, attempt = time.monotonic(), 1
    verdict = _refused(variant, text) or _run(variant, text)
    while verdict.how == "runner" and attempt < attempts:
        attempt, verdict = attempt + 1, _run(variant, text)
    return msgspec.structs.replace(verdict, seconds=round(time.monotonic() - started, 3), attempts=attempt)


def _wrong(faults: list[Fault]) -> Verdict:
    how = "yaml" if faults[0].check == "yaml" else "admission"
    return Verdict(WRONG, how, str(faults[0]), faults=[str(fault) for fault in faults])


def _refused(variant: Variant, text: str) -> Verdict | None:
    """Judge answers that need no sandbox: text that cannot be read, an object that is refused in itself, or semantics."""
    if variant.runner == "envoy":
        faults = Proxy.admit(text)
        return _wrong(faults) if faults else None
    cluster = Cluster(nodes=variant.nodes)
    if variant.given:
        cluster.apply(variant.given)
    if faults := cluster.admit(text):
        return _wrong(faults)
    return _checked(variant, cluster) if variant.runner == "semantics" else None


def _run(variant: Variant, text: str) -> Verdict:
    if reason := sandbox.can_run():
        return Verdict(UNJUDGED, "skipped", reason)
    name = f"{os.getpid()}-{next(_numbers)}"
    ended = sandbox.run(lambda name: _inside(variant, text, name), name, variant.timeout_s)
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
    faults = cluster.admit(text)
    return _wrong(faults) if faults else _checked(variant, cluster)


def _checked(variant: Variant, api: Checks) -> Verdict:
    check = check_function(variant)
    try:
        check(api, SimpleNamespace(**variant.variables))
    except CheckFailedError as failure:
        return Verdict(WRONG, api.how, str(failure))
    except NotCoveredError as error:
        return Verdict(UNJUDGED, "hostile" if "sandbox" in str(error) else "not covered", str(error))
    except RunnerError:
        raise
    except CloudEvalError as error:
        return Verdict(UNJUDGED, "problem", str(error))
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename.endswith("check.py")]
        place = f" (check.py line {lines[-1]})" if lines else ""
        return Verdict(WRONG, api.how, f"the check cannot find what it needs: {type(error).__name__} {error}{place}")
    return Verdict(RIGHT, "behaviour" if api.saw_behaviour else "semantics")
