"""The headline figure: how many wrong mutants cheaper checks let through, and how many right answers they refuse."""

import contextlib
import json
from pathlib import Path

import kubernetes_validate
import yaml

from cloudeval import problems
from cloudeval.errors import ReadError
from cloudeval.reading import read
from cloudeval.schema import inspect

HERE = Path(__file__).parent
#: Wildcard score from which a user of the metric alone would take an answer for right.
ENOUGH = 0.9


def by_kubernetes_validate(text: str) -> bool:
    """Return True if `kubernetes-validate` in strict mode, fed by PyYAML, finds nothing."""
    try:
        documents = [value for value in yaml.safe_load_all(text) if value is not None]
        for value in documents:
            with contextlib.suppress(kubernetes_validate.SchemaNotFoundError):
                kubernetes_validate.validate(value, "1.32", strict=True)
    except (yaml.YAMLError, kubernetes_validate.ValidationError, KeyError, TypeError, AttributeError):
        return False
    return bool(documents)


def by_schema(text: str) -> bool:
    """Return True if the package's own reader and schema check find nothing."""
    try:
        return not any(fault for document in read(text) for fault in inspect(document.value)[0])
    except (ReadError, AttributeError):
        return False


def main() -> None:
    verdicts = {
        (line["problem"], line["name"]): line
        for line in map(json.loads, (HERE / "results" / "strength.jsonl").read_text().splitlines())
    }
    wrong, right = [], []
    for problem in problems.load():
        variant = problems.draw(problem)
        if problem.group in ("envoy", "istio"):
            continue
        for kind, name, text in problems.answers_of(variant):
            line = verdicts[(problem.id, name)]
            entry = {
                "kubernetes-validate": by_kubernetes_validate(text),
                "schema": by_schema(text),
                "wildcard": line["metrics"]["kv_wildcard"] >= ENOUGH,
            }
            if kind == "mutant" and line["outcome"] == "wrong":
                wrong.append(entry)
            elif kind != "mutant":
                right.append(entry)
    result = {
        "wrong mutants": len(wrong),
        "right answers": len(right),
        "let through": {name: sum(entry[name] for entry in wrong) for name in wrong[0]},
        "right answers refused": {name: sum(not entry[name] for entry in right) for name in right[0]},
    }
    (HERE / "results" / "baselines.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
