"""Speed of the cheap metrics over 1,011 pairs, and prediction of the unit test from them over results/strength.jsonl."""

import json
import time
from pathlib import Path

import msgspec

from cloudeval import analyse, problems
from cloudeval.match import Reference
from cloudeval.metrics import METRICS, measure

HERE = Path(__file__).parent


def main() -> None:
    pairs = []
    for problem in problems.load():
        variant = problems.draw(problem)
        pairs += [(variant.id, variant.reference, text) for _, _, text in problems.answers_of(variant)]
    pairs = (pairs * 2)[:1011]
    started, processor = time.monotonic(), time.process_time()
    references: dict[str, Reference] = {}
    for name, reference, text in pairs:
        if name not in references:
            references[name] = Reference.parse(reference)
        measure(references[name], text)
    seconds, processor = time.monotonic() - started, time.process_time() - processor
    lines = [json.loads(line) for line in (HERE / "results" / "strength.jsonl").read_text().splitlines()]
    rows = [
        (line["group"], {name: line["metrics"][name] for name in METRICS}, line["outcome"] == "right") for line in lines
    ]
    prediction = analyse.predict(rows)
    alternatives = [line["metrics"]["kv_wildcard"] for line in lines if line["kind"] == "alternative"]
    own = [line["metrics"] for line in lines if line["kind"] == "reference"]
    result = {
        "pairs": len(pairs),
        "seconds": round(seconds, 2),
        "processor seconds": round(processor, 2),
        "prediction": msgspec.to_builtins(prediction),
        "alternatives with wildcard >= 0.9": sum(value >= 0.9 for value in alternatives) / len(alternatives),
        "references with 1.0 in every metric": sum(
            all(abs(value - 1) < 1e-9 for value in item.values()) for item in own
        )
        / len(own),
    }
    (HERE / "results" / "metrics.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
