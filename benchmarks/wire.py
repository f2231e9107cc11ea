"""What the bytes of a pattern are, in the kept windows of real jobs: on the way to the collector, and to the fleet.

    python benchmarks/wire.py --json benchmarks/results/wire.json
    python benchmarks/wire.py --judge judged.jsonl

All figures are bytes a worker, compressed as they travel; the parts one by one, so that their sum is not the whole.

A job of 64 workers is put together from patterns of jobs of four that ran the same program, on as many agents as there
are eights of them: 64 patterns are its first window and 64 others its second one. Real agents' and collectors' code
numbers the parts; the bodies of all requests count, of either direction. `timeline`, which corpus entries do not keep,
comes on top. `--judge` writes what `corpus_judge.py` writes, of patterns that have travelled.
"""

import argparse
import asyncio
import json
import random
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median

import msgspec

import corpus_entry
import corpus_judge
from corpus_entry import _pattern, entry_files, read_entry
from eroica.agent.numbering import Numbering
from eroica.collector.arrivals import Book
from eroica.fleet.records import pack_body
from eroica.fleet.reporting.packing import block_of
from eroica.model.pattern import WorkerPattern
from eroica.model.rows import RowTable
from eroica.wire.codec import encode_record
from eroica.wire.messages import NumberedPattern, PartsReply, PartsRequest
from eroica.wire.parcels import from_parcel, pack_numbers, to_parcel, unpack_parts
from eroica.wire.patterns import pack_rows

WORKERS, PER_AGENT = 64, 8


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
        "own part of a parcel": len(to_parcel(pattern).own),
    }


class Wire:
    """Agents and the collector's book, with nothing between them but a count of bytes."""

    def __init__(self, agents: int) -> None:
        self.book, self.bytes, self.texts = Book(), 0, 0
        self.agents = [Numbering(self._ask) for _ in range(agents)]

    async def _ask(self, request: PartsRequest) -> PartsReply:
        if request.texts:
            self.book.enter(unpack_parts(request.texts))
            self.texts += len(request.texts)
        numbers, wanted = self.book.look_up(0.0, request.ids)
        reply = PartsReply(book=self.book.number, numbers=tuple(numbers), wanted=tuple(wanted))
        self.bytes += len(msgspec.msgpack.encode(request)) + len(msgspec.msgpack.encode(reply))
        return reply

    async def deliver(self, place: int, pattern: WorkerPattern) -> None:
        """The pattern of one worker goes to the collector."""
        parcel, agent = to_parcel(pattern), self.agents[place // PER_AGENT]
        numbers = await agent.numbers(parcel.parts)
        assert numbers is not None
        message = NumberedPattern(book=agent.book, parts=len(numbers), numbers=pack_numbers(numbers), own=parcel.own)
        self.bytes += len(msgspec.msgpack.encode(message))

    def window(self, patterns: Sequence[WorkerPattern]) -> tuple[int, int]:
        """Bytes a worker of one window, and what of it are parts."""
        self.bytes = self.texts = 0

        async def all_of_them() -> None:
            for place, pattern in enumerate(patterns):
                await self.deliver(place, pattern)

        asyncio.run(all_of_them())
        return round(self.bytes / len(patterns)), round(self.texts / len(patterns))


def windows_of_64(patterns: list[WorkerPattern]) -> dict[str, object]:
    """A job's first two windows, of patterns in an order of their own."""
    random.Random(1).shuffle(patterns)
    wire = Wire(WORKERS // PER_AGENT)
    (first, first_parts), (second, second_parts) = (wire.window(patterns[at : at + WORKERS]) for at in (0, WORKERS))
    return {"first window": first, "of it parts": first_parts, "second window": second, "of that parts": second_parts}


def judge(out: Path) -> None:
    """Judge all kept windows with patterns that have been parcels."""
    kept = corpus_entry.CorpusWindow.worker_patterns

    def travelled(window: corpus_entry.CorpusWindow) -> tuple[WorkerPattern, ...]:
        return tuple(from_parcel(to_parcel(pattern)) for pattern in kept(window))

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
    programs: dict[str, list[WorkerPattern]] = {}
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
            if entry.origin == "benchmark":
                programs.setdefault(entry.layout, []).extend(patterns)
    record: dict[str, object] = {
        name: {"median": round(median(sizes)), "mean": round(sum(sizes) / len(sizes)), "n": len(sizes)}
        for name, sizes in found.items()
    }
    record["64 workers"] = {
        name: windows_of_64(patterns) for name, patterns in programs.items() if len(patterns) >= 2 * WORKERS
    }
    text = json.dumps(record, indent=1)
    print(text)
    if options.json:
        options.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
