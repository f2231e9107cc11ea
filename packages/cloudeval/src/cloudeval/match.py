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
ORDERED = frozenset(
    {
        "command",
        "args",
        "initContainers",
        "http",
        "match",
        "routes",
        "filter_chains",
        "http_filters",
        "filters",
        "listener_filters",
        "servers",
        "rules",
        "resourceGroups",
        "coveredResources",
        "replicatedJobs",
        "upgrade_configs",
        "priorities",
    }
)
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
    total = sum(count_leaves(value) for value in answer)
    if not answer or not reference.documents:
        return 0.0
    weights = [
        [_Matcher(document.labels).matched(document.value, value, (), "") for value in answer]
        for document in reference.documents
    ]
    matched = _assigned(weights)
    return matched / (reference.leaves + total - matched)


def equal_documents(reference: Reference, answer: list[Any]) -> bool:
    """Return True if the loaded documents are equal: order of lists and documents counts, order of keys does not."""
    wanted = [document.value for document in reference.documents]
    return len(wanted) == len(answer) and all(_equal(a, b) for a, b in zip(wanted, answer, strict=True))


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(_equal(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return a == b
    return type(a) is type(b) and bool(a == b)


def _assigned(weights: list[list[int]]) -> int:
    if len(weights) == 1:
        return max(weights[0], default=0)
    rows, columns = linear_sum_assignment(weights, maximize=True)
    return int(sum(weights[row][column] for row, column in zip(rows, columns, strict=True)))


class _Matcher:
    """Counts matched leaves of one pair of documents."""

    def __init__(self, labels: dict[Path, Label]) -> None:
        self.labels = labels

    def matched(self, wanted: Any, got: Any, path: Path, key: str) -> int:
        """Return how many leaves of the answer match."""
        if isinstance(wanted, dict) and isinstance(got, dict) and wanted and got:
            return sum(
                self.matched(item, got[name], (*path, name), name) for name, item in wanted.items() if name in got
            )
        if isinstance(wanted, list) and isinstance(got, list) and wanted and got:
            return self._lists(wanted, got, path, key)
        label = self.labels.get(path)
        if label is not None and not isinstance(got, (dict, list)):
            return int(label.any_value or any(_equal(value, got) for value in label.values))
        return int(_equal(wanted, got))

    def _lists(self, wanted: list[Any], got: list[Any], path: Path, key: str) -> int:
        ordered = key in ORDERED or (
            key == "env" and any(_REFERENCE in str(item.get("value", "")) for item in wanted if isinstance(item, dict))
        )
        if ordered:
            return sum(
                self.matched(a, b, (*path, index), "") for index, (a, b) in enumerate(zip(wanted, got, strict=False))
            )
        return _assigned([[self.matched(a, b, (*path, index), "") for b in got] for index, a in enumerate(wanted)])
