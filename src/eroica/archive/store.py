"""The run directory: what the collector and `eroica diagnose` keep on disk.

    <run>/job.json                          the command, its settings, when it began
    <run>/collector.json                    where the collector listens and its token (0600); gone when it ends
    <run>/hosts/<host>.json                 the same for one host; see `eroica.wire.address`
    <run>/prometheus.json, metrics.token    how Prometheus finds the collector; gone when it ends
    <run>/status.json                       the job right now, rewritten twice a second
    <run>/verdict.json                      the job's final verdict
    <run>/history.json                      iteration times of the whole job, rewritten every few seconds
    <run>/windows/<id>/window.json          what was asked for
    <run>/windows/<id>/underway.json        who takes part, for a collector that goes on with it
    <run>/windows/<id>/verdict.json         this window's verdict
    <run>/windows/<id>/patterns/<rank>.pattern
    <run>/windows/<id>/patterns/all.patterns   instead, while they come and of many workers: `archive.bundle`
    <run>/windows/<id>/sources.json         of windows read from files: global rank -> trace file
    <run>/windows/<id>/blockage.json        instead of patterns: what was seen of a job that stood still
    <run>/index.html, <run>/windows/<id>/index.html   the same verdicts as pages
    <run>/log/                              logs of collector, agents and workers

Files appear whole (written beside, then renamed), so a reader never sees half of one; `all.patterns` grows.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from eroica.model.history import IterationHistory
from eroica.model.look import Blockage
from eroica.model.pattern import WorkerPattern
from eroica.model.verdict import Verdict
from eroica.model.window import Window
from eroica.wire.places import write_whole


def write_json(path: Path, record: msgspec.Struct | dict[str, object]) -> None:
    """A record as indented JSON."""
    write_whole(path, msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")


class Store:
    """The run directory of one job."""

    def __init__(self, run: Path) -> None:
        self.run = run

    def window_directory(self, window_id: int) -> Path:
        """Where everything about one window lies."""
        return self.run / "windows" / str(window_id)

    def save_window(self, window: Window) -> None:
        """Keep what was asked for."""
        write_json(self.window_directory(window.window_id) / "window.json", window)

    def save_pattern(self, pattern: WorkerPattern, data: bytes) -> None:
        """Keep one worker's pattern as it came."""
        name = f"{pattern.worker.global_rank}.pattern"
        write_whole(self.window_directory(pattern.window_id) / "patterns" / name, data)

    def save_blockage(self, blockage: Blockage) -> None:
        """Keep what was seen of a job that stands still."""
        write_json(self.window_directory(blockage.look_id) / "blockage.json", blockage)

    def save_verdict(self, window_id: int, verdict: Verdict) -> None:
        """Keep one window's verdict."""
        write_whole(self.window_directory(window_id) / "verdict.json", verdict.to_json())

    def save_history(self, history: IterationHistory) -> None:
        """Keep the job's iteration times so far; without line breaks, for there may be thousands."""
        write_whole(self.run / "history.json", msgspec.json.encode(history))

    def save_final(self, verdict: Verdict) -> None:
        """Keep the job's verdict."""
        write_whole(self.run / "verdict.json", verdict.to_json())

    def remove_final(self) -> None:
        """The job goes on: what was kept as its verdict is not final."""
        (self.run / "verdict.json").unlink(missing_ok=True)
