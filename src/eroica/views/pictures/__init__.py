"""The report's pictures, in the order of the page; each is a module with `draw(material) -> Picture | None`.

None means: this verdict has no use for it (a job that stands still has no flame graphs). A picture that would belong
there but has nothing to be drawn from says so in `Picture.missing`. A picture may have a script and a style of its own:
`web/<module>.js` and `web/<module>.css`, put into the page by `eroica.views.page`.
"""

from __future__ import annotations

#: Modules of this package in the order of the page, and how they are called in its navigation.
TITLES = {
    "stuck": "Who is stuck where",
    "iterations": "Iterations",
    "cloud": "Workers",
    "heatmap": "Heat map",
    "delays": "Ways between hosts",
    "waits": "Waits",
    "timeline": "Timeline",
    "channels": "Hardware",
    "flames": "Stacks",
    "coverage": "Coverage",
}
NAMES = tuple(TITLES)
