"""What the bytes of a pattern are, in the kept windows of real jobs: on the way to the collector, and to the fleet.

    python benchmarks/wire.py --json benchmarks/results/wire.json
    python benchmarks/wire.py --judge judged.jsonl

All figures are bytes a worker, compressed as they travel; the parts one by one, so that their sum is not the whole.
`timeline`, which corpus entries do not keep, comes on top. `--judge` writes what `corpus_judge.py` writes, of patterns
that have travelled.
"""

import argparse
import json
import zlib
from collections.abc import Iterable
from pathlib import Path
from statistics import median

import msgspec

import corpus_entry
import corpus_judge
from corpus_entry import _pattern, entry_files, read_entry
from eroica.fleet.records import pack_body
from eroica.fleet.reporting.packing import block_of
from eroica.model.pattern import WorkerPattern
from eroica.model.rows import RowTable
from eroica.wire.codec import encode_record
from eroica.wire.parcels import pack_parcel, unpack_parcel
from eroica.wire.patterns import pack_rows


def parts(pattern: WorkerPattern) -> dict[str, int]:
    rows = pack_rows(RowTable.of(pattern.functions))
    rest = msgspec.structs.replace(pattern, functions=(), timeline=b"")
    return {
        "whole": len(encode_record(pattern)),
        "functions and their call stacks": len(zlib.compress(b"".join(rows.keys), 6)),
        "numbers": len(zlib.compress(rows.numbers, 6)),
        "series over iterations": len(rows.series),
        "timeline": len(pattern.timeline),
        "all else": len(encode_record(rest)),
        "parcel": len(pack_parcel(pattern)),
    }


def judge(out: Path) -> None:
    """Judge all kept windows with patterns that have been parcels."""
    kept = corpus_entry.CorpusWindow.worker_patterns

    def travelled(window: corpus_entry.CorpusWindow) -> tuple[WorkerPattern, ...]:
        return tuple(unpack_parcel(pack_parcel(pattern)) for pattern in kept(window))

    corpus_entry.CorpusWindow.worker_patterns = travelled  # type: ignore[method-assign]
    lines: Iterable[dict[str, object]] = (line for path in entry_files() for line in corpus_judge.judged(path))
    out.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--judge", type=Path, metavar="OUT")
    options = parser.parse_args()
    if options.judge:
        judge(options.judge)
        return
    found: dict[str, list[float]] = {}
    for path in entry_files():
        entry = read_entry(path)
        for window in entry.windows:
            patterns = [_pattern(each) if isinstance(each, dict) else each for each in window.patterns]
            for pattern in patterns:
                for name, size in parts(pattern).items():
                    found.setdefault(name, []).append(size)
            if patterns:
                block = len(pack_body(block_of(0, patterns, "slow"))) / len(patterns)
                found.setdefault("to the fleet, in a block of 4", []).append(block)
    record: dict[str, object] = {
        name: {"median": round(median(sizes)), "mean": round(sum(sizes) / len(sizes)), "n": len(sizes)}
        for name, sizes in found.items()
    }
    text = json.dumps(record, indent=1)
    print(text)
    if options.json:
        options.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
