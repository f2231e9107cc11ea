"""Writes docs/settings.md from eroica.settings and the modules that hold fixed numbers; run by `make docs`."""

from dataclasses import fields
from importlib import import_module
from pathlib import Path

from eroica.settings import Settings, allowed

HEAD = """# Settings

Made from the code by `make docs`. Set one with `eroica run --set NAME=VALUE`, with the variable `EROICA_<NAME>`, or in
`eroica.toml`; the first of these wins. Anything else than what is allowed is refused with one line that says so.

| name | default | allowed | meaning | source |
|---|---|---|---|---|
"""
FIXED_HEAD = """
## Fixed

Numbers that triggers and windows rest on and that are no settings: each follows from another number, bounds what could
go wrong, or was chosen together with its neighbors on recorded jobs, so that changing it alone would help nobody. To
make Eroica ask more or less often, use the settings of the slow trigger above.

| what | value | why it is no setting | where |
|---|---|---|---|
"""
CHOSEN = "chosen with its neighbors on recorded iteration times"
SIMULATED = "chosen on simulated jobs"
#: Module, its constant or constants, in plain words, why it is no setting.
FIXED = (
    ("agent.slowdown", "_LONG", "Means are also taken over so many times `mean_iterations`", CHOSEN),
    ("agent.slowdown", "_LONG_MARGIN", "Factor on `slowdown` for those long means", CHOSEN),
    ("agent.slowdown", "_PARTS", "Times that a rise is looked at within `confirm_iterations`", "only how often"),
    ("agent.slowdown", "_FEWEST", "Means of the past to compare with, at least: short, long", "fewer say nothing"),
    ("agent.slowdown", "_MAD_TO_SIGMA", "Standard deviations in a median absolute deviation", "mathematics"),
    ("agent.slowdown", "_LARGEST_MARGIN", "Most that `healthy_backoff` can raise the margin to", "bounds a setting"),
    ("agent.slowdown", "_LIVED_THROUGH", "Share of the past means that counts as lived through", CHOSEN),
    ("agent.slowdown", "_PART_OF_RISE", "Share of the limit that each part of a rise must reach", CHOSEN),
    ("agent.slowdown", "_STEPS", "A step up: after so many means, so much higher than any before", CHOSEN),
    ("agent.change", "_ALLOWANCE", "A change: so much above the best stretch is allowed...", "half of 15 %"),
    ("agent.change", "_ALLOWED_SCATTER", "... or so many times the scatter of neighboring stretches", SIMULATED),
    ("agent.change", "_LOST_S", "Seconds lost beyond that which make a change...", "lost within the time it may take"),
    ("agent.change", "_CHANCE", "... more where blocks scatter: chance has e to the minus so much", SIMULATED),
    ("agent.change", "_LARGEST_PART", "... of which one block may add this share", "no block asks alone"),
    ("agent.change", "_LASTING_S", "... and it must have lasted so long, s...", "others' moments are over"),
    ("agent.change", "_LASTING_ITERATIONS", "... and so many iterations", "within five"),
    ("agent.change", "_BLOCK_S", "Length of a block, without its slowest iteration, s...", SIMULATED),
    ("agent.change", "_LEAST_IN_BLOCK", "... and iterations of it, at least...", "one is left out"),
    ("agent.change", "_ENOUGH_IN_BLOCK", "... this many, where they are usually short...", "one is left out"),
    ("agent.change", "_LONG_BLOCK_S", "... unless it has lasted so long, s", "as `_LOST_S`"),
    ("agent.change", "_STRETCH", "Blocks in a stretch", SIMULATED),
    ("agent.change", "_FIRST_BLOCKS", "Blocks of the first stretch...", "the baseline window waits for them"),
    ("agent.change", "_FIRST_ITERATIONS", "... and its iterations, at least", SIMULATED),
    ("agent.change", "_LEVEL", "Blocks whose median is a level", "two may be anything"),
    ("agent.change", "_LIVED_THROUGH", "Share of the levels that counts as lived through", "as for means"),
    ("agent.change", "_BEYOND", "A change exceeds those by this share of the allowance", SIMULATED),
    ("agent.change", "_DIFFERENCES", "Blocks whose differences tell the scatter", "bounds time"),
    ("agent.change", "_MOST_BLOCKS", "Blocks remembered", "bounds memory"),
    ("agent.splitting", "_TIMES", "In the course of a baseline window: so many times as long is slow...", CHOSEN),
    ("agent.splitting", "_ASTRAY", "... if no larger share of either side looks like the other", SIMULATED),
    ("agent.splitting", "_LEAST_BEFORE", "... with so many iterations before...", "as a baseline window needs"),
    ("agent.splitting", "_LEAST_AFTER", "... and so many after it", "fewer may be anything"),
    ("agent.bursts", "_SLOW", "An iteration so many times as long as the best mean is slow", CHOSEN),
    ("agent.bursts", "_BEGIN", "Slow iterations in a row that begin a stretch", CHOSEN),
    ("agent.bursts", "_END", "Iterations in a row that end it...", CHOSEN),
    ("agent.bursts", "_FREE", "... if their mean is no more than so many times the best one", CHOSEN),
    ("agent.bursts", "_HABIT", "Stretches that make a habit...", "two may be chance"),
    ("agent.bursts", "_LEAST_LOST", "... if they cost this share of the time", CHOSEN),
    ("agent.bursts", "_MEMORY", "Iterations without one after which they are forgotten", "as `horizon_iterations`"),
    ("agent.bursts", "_MOST", "Stretches remembered", "bounds memory"),
    ("agent.seldom", "_LONG", "An iteration so many times as long as the usual one is long", CHOSEN),
    ("agent.seldom", "_IN_A_ROW", "Long ones in a row at most, else it is a stretch", "as `bursts` begin"),
    ("agent.seldom", "_LEAST_EXCESS", "Usual iterations that an occasion takes longer, at least", SIMULATED),
    ("agent.seldom", "_HABIT", "Occasions that make a habit...", SIMULATED),
    ("agent.seldom", "_ALIKE", "... if each takes this share of the last one...", SIMULATED),
    ("agent.seldom", "_ELSE", "... nothing between them takes this share of the shortest...", SIMULATED),
    ("agent.seldom", "_BEFORE", "... none was there for so many distances before the first...", SIMULATED),
    ("agent.seldom", "_CLOSEST", "... they are so many iterations apart...", "closer ones are in the means"),
    ("agent.seldom", "_LEAST_LOST", "... and cost this share of the time more than before", "as `bursts`"),
    ("agent.seldom", "_MEMORY", "Iterations within which it must come back", "as `horizon_iterations`"),
    ("agent.seldom", "_MOST", "Occasions remembered", "bounds memory"),
    ("agent.seldom", "_AHEAD_S", "A window is asked for so long before the next one is due, s", "time for a probe"),
    ("wire.patience", "REGULAR", "Share by which distances of long iterations far apart may differ, and their windows "
     "allow for...", SIMULATED),
    ("wire.patience", "_LEAST_OFF", "... in iterations, at least", "they are about regular"),
    ("collector.opening", "_USUAL_BESIDE", "Usual iterations in a window for such a one", "to compare with"),
    ("worker.rhythm", "_LONGEST_IRREGULAR", "Steps at most until a pattern is taken anyway", "bounds memory"),
    ("collector.opening", "_LONGEST_COOLDOWN_S", "The pause between windows doubles from `cooldown_s` up to this, s, "
     "or stays `cooldown_s` if that is longer", "bounds a setting"),
    ("collector.opening", "_AFTER_GIVING_UP_S", "Pause after a window that never opened, s", "nothing was captured"),
    ("collector.opening", "_AFTER_ASKED_S", "Pause after a window that was asked for by hand, s", "its cost is over"),
    ("collector.opening", "_MOST_REQUESTS", "Requests by hand that wait", "bounds memory"),
    ("collector.opening", "_EARLY_TRIES", "Times that the window after a slow baseline window is tried",
     "it may never open"),
    ("collector.opening", "_PERIODS", "Slowness that comes and goes is looked at for so many of its periods",
     "one whole period must be inside"),
    ("collector.opening", "_LONGEST_WINDOW_S", "... but no longer than this, s", "bounds the cost"),
    ("collector.opening", "_MOST_ITERATIONS", "... and for no more iterations", "bounds the cost"),
    ("collector.opening", "SHORTEST_S", "No iteration is taken for shorter than this, s", "guards a division"),
    ("collector.span", "_LEAST_LEAD", "Iterations between the order and the window, at least",
     "the one under way cannot be the first"),
    ("wire.patience", "_TIMES", "Windows are waited for so many times as long as their iterations took before",
     "with `window_deadline_s` beside it"),
    ("wire.patience", "_LONGEST_LEAD_S", "... but for the first iteration no longer than so many times this, s",
     "workers may be far apart"),
    ("wire.patience", "_PARKED_ITERATIONS", "Iterations granted after a window until its profiler is stopped",
     "with `window_deadline_s` beside it"),
)  # fmt: skip


def settings_page() -> str:
    """The page."""
    rows = [
        f"| `{item.name}` | {item.default!r} | {allowed(item)} | {item.metadata['doc']} | {item.metadata['source']} |"
        for item in fields(Settings)
    ]
    fixed = [
        f"| {what} | {_value(getattr(import_module(f'eroica.{module}'), name))} | {why} | `{module}` |"
        for module, name, what, why in FIXED
    ]
    return HEAD + "\n".join(rows) + "\n" + FIXED_HEAD + "\n".join(fixed) + "\n"


def _value(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(_value(one) for one in value.values())
    if isinstance(value, tuple):
        return "; ".join(", ".join(map(_value, one)) for one in value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def main() -> None:
    """Write the page."""
    Path(__file__).with_name("settings.md").write_text(settings_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
