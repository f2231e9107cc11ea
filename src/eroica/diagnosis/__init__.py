"""Turn the suspects of a window into a verdict: causes, what they cost, who waits for them, and what to do.

The algorithm, in six steps:

1. **Cells.** `cells` groups a worker's own time by kind: input, Python under each frame, collections, memory,
   operators, launches, collectives.
2. **Blocks.** `search` compares each cell with what is expected (`outliers.expected`: peers of the role, the baseline
   window, a stated limit) and finds coherent excess: on some workers, on all, on another one each time, now and then.
3. **Facts.** `facts` and `cells` measure each block; `neighbors`, `setup` and `helpers` find culprits beside.
4. **Labels.** `labels` is a table: the first row whose condition holds gives the block its cause.
5. **Account.** `selection` takes blocks by what their removal gains, and each only with what is left.
6. **Gate.** `gate` says how sure each cause is, and withholds those that are rather not real.

Then `conclusion` chooses the word, `findings` and `wording` write the record.
"""

from __future__ import annotations

import msgspec

from eroica import __version__
from eroica.diagnosis import gate
from eroica.diagnosis.conclusion import conclude, too_little
from eroica.diagnosis.findings import build_findings
from eroica.diagnosis.sections import break_down, list_hypotheses, read_waits
from eroica.diagnosis.selection import explained_us, find_causes
from eroica.diagnosis.view import View, WindowContext
from eroica.localize import Suspects
from eroica.model.causes import CATALOG, CatalogEntry
from eroica.model.verdict import Coverage, Verdict, VerdictWindow
from eroica.settings import Settings

__all__ = ["CATALOG", "CatalogEntry", "WindowContext", "diagnose"]


def diagnose(suspects: Suspects, context: WindowContext, settings: Settings) -> Verdict:
    """Return the verdict on one window.

    Args:
        suspects: Result of localization.
        context: The window, who answered, notes and cost.
        settings: `min_gain` and the expectations.
    """
    view = View(suspects, context, settings)
    causes, weighed = find_causes(view) if not too_little(view) else ([], [])
    causes, withheld = gate.admit(view, causes)
    weighed = [*withheld, *weighed]
    view.has_no_cause = not causes
    findings = build_findings(view, causes)
    word, summary, notes = conclude(view, causes, weighed, findings)
    window = context.window
    return Verdict(
        eroica_version=__version__,
        job=context.job,
        verdict=word,
        summary=summary,
        window=VerdictWindow(
            kind=window.kind,
            first_iteration=window.first_iteration,
            last_iteration=window.last_iteration,
            duration_s=round(max(pattern.duration_s for pattern in suspects.fleet.patterns), 3),
            reason=window.reason,
        ),
        iteration=msgspec.structs.replace(
            view.times,
            rest_ms=None if view.loss is None else round(view.loss.rest(explained_us(view, causes)) / 1e3, 3),
        ),
        coverage=Coverage(
            workers_expected=context.expected_workers,
            workers_reported=view.workers,
            missing=context.missing,
            notes=(*context.notes, *notes),
        ),
        findings=findings,
        cost=context.cost,
        waits=read_waits(suspects),
        considered=list_hypotheses(view, causes, weighed),
        breakdown=None if causes else break_down(view),
    )
