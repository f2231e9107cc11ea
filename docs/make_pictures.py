"""Draws docs/pictures from three real jobs that get slow or stop: report, live page, terminal; `make docs-pictures`.

Needs Chromium and its driver, and tmux. A job takes one to two minutes.
"""

import io
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

from eroica.cli.demo import Story
from eroica.wire.address import page_link, read_address
from support.browser import Browser, why_no_browser

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
from injected.rehearsal import Rehearsal

PICTURES = Path(__file__).with_name("pictures")
#: Fault -> the worker that has it, and the pictures that pages embed.
SHOWN = {
    "slow-loader": (2, ("footer.svg", "top.svg", "verdict.svg", "live.png", "report.png", "report-whole.png")),
    "blocking-checkpoint": (0, ("report.png",)),
    "hang-queue": (1, ("live.png", "report.png")),
}
TERMINAL = (100, 30)
PATIENCE_S = 180.0
#: Fonts of the reader's machine; the template's own come from the network.
SVG_FORMAT = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)


def main() -> int:
    if why := why_no_browser():
        print(why)
        return 1
    PICTURES.mkdir(exist_ok=True)
    browser = Browser()
    try:
        for fault, (worker, _) in SHOWN.items():
            with tempfile.TemporaryDirectory(prefix="eroica-docs-") as name:
                photograph(Rehearsal(fault, worker, 4, Path(name).resolve()), browser)
            print(f"{fault}: drawn", flush=True)
    finally:
        browser.quit()
    return 0


def photograph(case: Rehearsal, browser: Browser) -> None:
    """One job: terminal and live page while it runs, then its last words and its report."""
    words = [word for word in case.command() if word != "--quiet"]
    variables = [f"{name}={value}" for name, value in case.environment().items() if name.startswith(("EROICA", "OMP"))]
    with Terminal("job", ["env", "-u", "CI", *variables, *words]) as terminal:
        wait_for_the_answer(case)
        time.sleep(2)
        terminal.draw(case.fault, "footer.svg", "eroica run")
        with Terminal("top", [sys.executable, "-m", "eroica", "top", "--out", str(case.run)]) as top:
            time.sleep(4)
            top.draw(case.fault, "top.svg", "eroica top")
        live_page(case, browser)
        terminal.interrupt()
        wait_for(lambda: (case.run / "index.html").exists() and case.final.exists())
        time.sleep(2)
        terminal.draw(case.fault, "verdict.svg", "eroica run")
    browser.size(1200, 1240)
    browser.open(case.run / "index.html")
    time.sleep(1)
    shoot(browser, case.fault, "report.png")
    shoot(browser, case.fault, "report-whole.png", whole=True)


def shoot(browser: Browser, fault: str, name: str, whole: bool = False) -> None:
    """Keep what the browser shows, if a page embeds it."""
    if name in SHOWN[fault][1]:
        browser.screenshot(PICTURES / f"{fault}-{name}", whole=whole)


def wait_for_the_answer(case: Rehearsal) -> None:
    story = Story(case)
    wait_for(lambda: (status := case.status()) is not None and story.concluded(status))


def live_page(case: Rehearsal, browser: Browser) -> None:
    """The page that the collector serves, as a reader finds it."""
    address = read_address(case.run)
    if address is None:
        raise RuntimeError("the collector is gone")
    browser.size(1200, 900)
    browser.open(page_link(address))
    time.sleep(3)
    shoot(browser, case.fault, "live.png", whole=True)


class Terminal:
    """A program in a real terminal.

    Args:
        name: Of the terminal.
        command: The program and its arguments.
    """

    def __init__(self, name: str, command: list[str]) -> None:
        self._tmux = ["tmux", "-L", f"eroica-docs-{name}"]
        self._command = f"{shlex.join(command)}; sleep 600"

    def __enter__(self) -> "Terminal":
        width, height = TERMINAL
        size = ["-x", str(width), "-y", str(height)]
        subprocess.run([*self._tmux, "-f", "/dev/null", "new-session", "-d", *size, self._command], check=True)
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run([*self._tmux, "kill-server"], check=False)

    def interrupt(self) -> None:
        """Ctrl-C."""
        subprocess.run([*self._tmux, "send-keys", "C-c"], check=True)

    def draw(self, fault: str, name: str, title: str) -> None:
        """Keep what it shows as a picture, if a page embeds it."""
        if name not in SHOWN[fault][1]:
            return
        shown = subprocess.run(
            [*self._tmux, "capture-pane", "-e", "-p"], capture_output=True, text=True, check=True
        ).stdout.rstrip()
        console = Console(record=True, width=TERMINAL[0], file=io.StringIO(), force_terminal=True)
        console.print(Text.from_ansi(shown))
        path = PICTURES / f"{fault}-{name}"
        path.write_text(console.export_svg(title=title, code_format=SVG_FORMAT), encoding="utf-8")


def wait_for(happens: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not happens():
        if time.monotonic() > end:
            raise TimeoutError("the job did not come so far")
        time.sleep(0.2)


if __name__ == "__main__":
    sys.exit(main())
