"""The cheap metrics of an answer, its class, and pass@k. `docs/metrics.md` states every convention."""

import math
from typing import Any

from rapidfuzz.distance import Indel

from cloudeval.errors import ReadError
from cloudeval.match import Reference, equal_documents, wildcard_score
from cloudeval.reading import strip_labels, values

METRICS = ("bleu", "edit", "exact", "kv_exact", "kv_wildcard")
CLASSES = {
    1: "empty or under three lines",
    2: "no kind",
    3: "not complete YAML",
    4: "wrong kind",
    5: "right kind, test fails",
    6: "passes",
}


def measure(reference: Reference, answer: str) -> dict[str, float]:
    """Return the five cheap metrics of a cleaned answer, each 0–1."""
    plain = strip_labels(reference.text)
    documents = _values(answer)
    return {
        "bleu": bleu(plain, answer),
        "edit": edit_score(plain, answer),
        "exact": float(_trimmed(plain) == _trimmed(answer)),
        "kv_exact": float(documents is not None and equal_documents(reference, documents)),
        "kv_wildcard": wildcard_score(reference, documents or []),
    }


def _values(text: str) -> list[Any] | None:
    try:
        return values(text)
    except ReadError:
        return None


def _trimmed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")


def bleu(reference: str, answer: str) -> float:
    """Return BLEU-4 with smoothing method 3 over blank-separated tokens; 0 for answers under four tokens."""
    from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu

    tokens = answer.split()
    if len(tokens) < 4 or not reference.split():
        return 0.0
    return float(sentence_bleu([reference.split()], tokens, smoothing_function=SmoothingFunction().method3))


def edit_score(reference: str, answer: str) -> float:
    """Return 1 − (added + deleted lines) / lines of the reference, at least 0; the diff is the shortest one."""
    wanted, got = _trimmed(reference).splitlines(), _trimmed(answer).splitlines()
    return max(0.0, 1 - Indel.distance(wanted, got) / max(1, len(wanted)))


def classify(answer: str, runner: str, reference: Reference, passed: bool) -> int:
    """Return the answer's class, 1 (far) to 6 (passes). A passing answer is 6 whatever its form."""
    if passed:
        return 6
    if sum(bool(line.strip()) for line in answer.splitlines()) < 3 and _kinds(answer, runner) is None:
        return 1
    marker = "static_resources" if runner == "envoy" else "kind"
    if f"{marker}:" not in answer and f'"{marker}"' not in answer:
        return 2
    kinds = _kinds(answer, runner)
    if kinds is None:
        return 3
    wanted = {str(item.value.get("kind", "")) for item in reference.documents if isinstance(item.value, dict)}
    return 5 if runner == "envoy" or wanted <= kinds else 4


def _kinds(answer: str, runner: str) -> set[str] | None:
    """Return the kinds of the documents, or None where the text is no complete YAML."""
    documents = _values(answer)
    if not documents or not all(isinstance(value, dict) for value in documents):
        return None
    if runner == "envoy":
        return {"static_resources"} if isinstance(documents[0].get("static_resources"), dict) else None
    lists = [value for value in documents if value.get("kind") == "List"]
    single = [value for value in documents if value.get("kind") and value not in lists]
    if any(not isinstance(value.get("metadata"), dict) for value in single):
        return None
    parts = [*single, *(item for value in lists for item in value.get("items") or [])]
    return {str(value["kind"]) for value in parts if isinstance(value, dict) and value.get("kind")}


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """Return the unbiased estimate of passing with k of the samples: 1 − C(n−c, k) / C(n, k)."""
    if k > samples:
        raise ValueError(f"pass@{k} needs at least {k} samples, there are {samples}")
    return 1.0 - math.comb(samples - passed, k) / math.comb(samples, k)
