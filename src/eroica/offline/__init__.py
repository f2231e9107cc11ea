"""Trace files, folders and dumps that somebody else recorded -> verdicts.

    import eroica

    verdict = eroica.diagnose("traces/")
    print(verdict.summary)
    for finding in verdict.findings:
        print(finding.cause, finding.workers, finding.evidence)

PyTorch is not needed. `discover` finds files, `reading` summarizes them in processes of its own, `jobs` groups them
into recordings, and `examine` hands each recording to the chain that judges running jobs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from eroica.settings import Settings, load_settings

if TYPE_CHECKING:
    from eroica.model.verdict import Verdict
    from eroica.offline.jobs import Examination

__all__ = ["diagnose", "diagnose_all"]

Paths = str | PathLike[str] | Sequence[str | PathLike[str]]


def diagnose(
    paths: Paths,
    *,
    settings: Settings | Mapping[str, Any] | None = None,
    rank_regex: str | None = None,
    progress: bool = False,
) -> Verdict:
    """Say what is wrong in profiler traces, Flight Recorder dumps, or what Eroica has kept of a job.

    Args:
        paths: Trace files (`.json`, `.json.gz`), folders, patterns (`"runs/**/*.json.gz"`), dumps, run directories; one
            or several.
        settings: Tunables, or some of them by name; default: `eroica.toml` and the environment, then the defaults.
        rank_regex: Where neither the traces nor their names tell the global rank: a regular expression, searched in
            names and then in paths, whose one group is the rank.
        progress: Show a bar on standard error, if that is a terminal.

    Returns:
        The verdict on the recording with the greatest cause. If there were several recordings or jobs, its coverage
        notes name the others; `diagnose_all` returns them all.

    Raises:
        UsageError: A path leads nowhere, there is no trace, or nobody knows the ranks; the text says what to give.
        InputError: Nothing of what is there can be read; the text says why.
    """
    return _examine(paths, settings, rank_regex, progress).verdict


def diagnose_all(
    paths: Paths,
    *,
    settings: Settings | Mapping[str, Any] | None = None,
    rank_regex: str | None = None,
    progress: bool = False,
) -> tuple[Verdict, ...]:
    """Return a verdict for every job and recording under the paths, the one with the greatest cause first.

    Args and errors are those of `diagnose`.
    """
    return _examine(paths, settings, rank_regex, progress).verdicts


def _examine(
    paths: Paths, settings: Settings | Mapping[str, Any] | None, rank_regex: str | None, progress: bool
) -> Examination:
    from eroica.offline.examine import examine, reading_bar
    from eroica.trace.names import compile_rule

    named = [paths] if isinstance(paths, str | PathLike) else list(paths)
    tunables = settings if isinstance(settings, Settings) else load_settings(settings)
    rule = compile_rule(rank_regex) if rank_regex is not None else None
    with reading_bar(progress) as bar:
        return examine(named, tunables, rule, bar)
