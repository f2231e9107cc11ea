"""Compares two YAML trees leaf by leaf under a reference's labels.

The score is matched leaves / (leaves of the reference + leaves of the answer − matched leaves). Mappings are compared
by key, ordered lists by position, other lists and documents by the assignment of items that matches most leaves, so each
leaf of the answer counts once. Types count: "80" is not 80; numbers of equal value are equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from scipy.optimize import linear_sum_assignment

from cloudeval.reading import Document, Label, Path, read

#: Lists whose order has a meaning for Kubernetes, Envoy or Istio, by the key that holds them.
_ORDERED = (
    "command args initContainers http match routes filter_chains http_filters filters listener_filters servers rules "
    "resourceGroups coveredResources replicatedJobs upgrade_configs priorities"
)
ORDERED = frozenset(_ORDERED.split())
#: Lists of `env` are ordered where one variable refers to another.
_REFERENCE = "$("


@dataclass(frozen=True)
class Reference:
    """A labelled reference, parsed once."""

    text: str
    documents: tuple[Document, ...]
    leaves: int

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Parse a reference with its labels."""
        documents = tuple(read(text, labels=True))
        return cls(text, documents, sum(count_leaves(document.value) for document in documents))


def count_leaves(value: Any) -> int:
    """Return the number of leaves; an empty mapping or list is one leaf."""
    if isinstance(value, dict) and value:
        return sum(count_leaves(item) for item in value.values())
    if isinstance(value, list) and value:
        return sum(count_leaves(item) for item in value)
    return 1


def wildcard_score(reference: Reference, answer: list[Any]) -> float:
    """Return the key-value wildcard score of an answer's documents, 0–1."""
    if not answer or not reference.documents:
        return 0.0
    wanted = reference.documents
    matched = _assigned([[_matched(item.labels, item.value, got, ()) for got in answer] for item in wanted])
    return matched / (reference.leaves + sum(map(count_leaves, answer)) - matched)


def equal_documents(reference: Reference, answer: list[Any]) -> bool:
    """Return True if the loaded documents are equal: order of lists and documents counts, order of keys does not."""
    return _equal([document.value for document in reference.documents], answer)


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_equal, a, b))
    numbers = all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in (a, b))
    return (numbers or type(a) is type(b)) and bool(a == b)


def _assigned(weights: list[list[int]]) -> int:
    if len(weights) == 1:
        return max(weights[0], default=0)
    rows, columns = linear_sum_assignment(weights, maximize=True)
    return int(sum(weights[row][column] for row, column in zip(rows, columns, strict=True)))


def _matched(labels: dict[Path, Label], wanted: Any, got: Any, path: Path) -> int:
    """Return how many leaves of the answer match."""
    if isinstance(wanted, dict) and isinstance(got, dict) and wanted and got:
        return sum(_matched(labels, wanted[key], got[key], (*path, key)) for key in wanted.keys() & got.keys())
    if isinstance(wanted, list) and isinstance(got, list) and wanted and got:
        if _is_ordered(wanted, path[-1] if path else ""):
            pairs = enumerate(zip(wanted, got, strict=False))
            return sum(_matched(labels, a, b, (*path, index)) for index, (a, b) in pairs)
        return _assigned([[_matched(labels, a, b, (*path, index)) for b in got] for index, a in enumerate(wanted)])
    label = labels.get(path)
    if label is not None and not isinstance(got, (dict, list)):
        return int(label.any_value or any(_equal(value, got) for value in label.values))
    return int(_equal(wanted, got))


def _is_ordered(items: list[Any], key: str | int) -> bool:
    refers = any(_REFERENCE in str(item.get("value", "")) for item in items if isinstance(item, dict))
    return key in ORDERED or (key == "env" and refers)
