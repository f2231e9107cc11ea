"""Draws docs/pictures/tensorboard.png and mlflow.png: Eroica's verdict in the trackers of a real training.

`python docs/make_tracker_pictures.py FW/bin/python [--kept DIR]`, where FW has Transformers, TensorBoard and MLflow
(`make test-tools` makes one; `pip install mlflow` adds the server). Needs Chromium and its driver. Takes minutes.
"""

from __future__ import annotations

import argparse
import base64
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium.webdriver import ActionChains
from selenium.webdriver.common.by import By

from support.browser import Browser, why_no_browser

HERE = Path(__file__).parent
JOB = HERE.parent / "benchmarks" / "jobs" / "frameworks" / "trackers.py"
PATIENCE_S = 90.0
#: The part of TensorBoard's page with the text: beside it stand folders of this machine.
MIDDLE = {"x": 325, "y": 0, "width": 955, "height": 395, "scale": 1}
#: Puts a text into the first field for a filter of tags, which lies in shadow roots; false if there is none yet.
FILTER = """
const fields = [];
const look = root => root.querySelectorAll("*").forEach(one => {
    if (one.tagName === "INPUT" && one.type !== "checkbox") fields.push(one);
    if (one.shadowRoot) look(one.shadowRoot);
});
look(document);
const field = fields.find(one => /tags/i.test(one.placeholder + one.getAttribute("aria-label")
    + (one.getRootNode().host || {}).label + (one.getRootNode().host || {}).placeholder)) || fields[fields.length - 1];
if (!field) return false;
field.focus();
return true;
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("python", type=Path)
    parser.add_argument("--kept", type=Path, help="the training's files lie or stay here")
    options = parser.parse_args()
    if why := why_no_browser():
        print(why)
        return 1
    place = options.kept or Path(tempfile.mkdtemp(prefix="eroica-docs-"))
    binaries = options.python.parent
    if not (place / "board").exists():
        train(binaries, place)
    browser = Browser()
    try:
        command = [str(binaries / "tensorboard"), "--logdir", str(place / "board"), "--port"]
        with serving(command) as url:
            photograph(browser, f"{url}/#text", "eroica", HERE / "pictures" / "tensorboard.png", MIDDLE)
        store = f"sqlite:///{place / 'mlflow.db'}"
        command = [str(binaries / "mlflow"), "server", "--backend-store-uri", store, "--workers", "1", "--port"]
        with serving(command) as url:
            photograph(browser, f"{url}/#/experiments/0/runs/{run_of(binaries, store)}", "eroica.verdict",
                       HERE / "pictures" / "mlflow.png")  # fmt: skip
    finally:
        browser.quit()
    return 0


def train(binaries: Path, place: Path) -> None:
    """The training, watched."""
    place.mkdir(parents=True, exist_ok=True)
    variables = {
        "MLFLOW_TRACKING_URI": f"sqlite:///{place / 'mlflow.db'}",
        "TENSORBOARD_LOGGING_DIR": str(place / "board"),
        "OMP_NUM_THREADS": "1",
        "PATH": f"{binaries}:{os.environ['PATH']}",
    }
    torchrun = [str(binaries / "torchrun"), "--standalone", "--nproc-per-node", "2", str(JOB), str(place / "out")]
    command = [str(binaries / "eroica"), "run", "--job", "weights-as-text", "--", *torchrun]
    subprocess.run(command, env={**os.environ, **variables}, cwd=place, check=True)


@contextmanager
def serving(command: list[str]) -> Iterator[str]:
    """A server on a free port, until its page is there."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    quiet = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}  # a dozen processes that nothing needs here
    server = subprocess.Popen([*command, str(port), "--host", "127.0.0.1"], env=quiet)
    try:
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                urllib.request.urlopen(url, timeout=5).close()
                break
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.5)
        yield url
    finally:
        server.terminate()
        server.wait(30)


def run_of(binaries: Path, store: str) -> str:
    """The training's run in MLflow."""
    code = (
        "import mlflow, sys; mlflow.set_tracking_uri(sys.argv[1]);"
        "print(mlflow.search_runs(search_all_experiments=True, output_format='list')[0].info.run_id)"
    )
    asked = subprocess.run([binaries / "python", "-c", code, store], capture_output=True, text=True, check=True)
    return asked.stdout.strip()


def photograph(browser: Browser, url: str, text: str, file: Path, clip: dict[str, int] | None = None) -> None:
    """The page, or a part of it, as soon as it shows the text."""
    browser.driver.get(url)
    end = time.monotonic() + PATIENCE_S
    while not said(browser, text) and time.monotonic() < end:
        time.sleep(0.5)
    if url.endswith("#text") and browser.driver.execute_script(FILTER):
        ActionChains(browser.driver).send_keys(text).perform()
    time.sleep(3)
    for tag in browser.driver.find_elements(By.XPATH, f"//span[@title='{text}']")[:1]:
        tag.click()  # MLflow shows the whole of it then
        time.sleep(1)
    shown = browser.driver.execute_cdp_cmd("Page.captureScreenshot", {"clip": clip} if clip else {})
    file.write_bytes(base64.b64decode(shown["data"]))


def said(browser: Browser, text: str) -> bool:
    """Whether the page, or a page inside of it, shows the text."""
    shown = "return document.documentElement.getHTML({serializableShadowRoots: true}) + document.body.innerText"
    return text in browser.driver.execute_script(shown)


if __name__ == "__main__":
    sys.exit(main())
