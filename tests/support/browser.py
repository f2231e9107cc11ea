"""One headless Chromium for tests of pages: what they show, log, request, and what keeps people out.

Debian's Chromium and its driver, through Selenium; nothing is downloaded. The axe checker is the one that comes with
axe-core-python, put into the page by the driver, so the page's own content security policy stays as it is.
"""

from __future__ import annotations

import base64
import json
import shutil
import tempfile
from collections.abc import Callable
from importlib.resources import files
from itertools import count
from pathlib import Path
from typing import Any, cast

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

CHROMIUM, DRIVER = "/usr/bin/chromium", "/usr/bin/chromedriver"
DESKTOP, PHONE = (1280, 900), (390, 844)
#: A test machine may be busy; a page that needs longer is broken.
PATIENCE_S = 20.0
_MARK = "eroica-console-mark-"
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
)
_RUN_AXE = """
const done = arguments[arguments.length - 1];
axe.run(document, {resultTypes: ["violations"]}).then(found => done(found.violations), error => done(String(error)));
"""


def why_no_browser() -> str:
    """Why tests of pages cannot run here; empty if they can."""
    missing = [path for path in (CHROMIUM, DRIVER) if not Path(path).exists()]
    return f"{' and '.join(missing)} missing (Debian: chromium, chromium-driver)" if missing else ""


class Browser:
    """A page in Chromium, and what is known of it.

    Attributes:
        driver: Selenium's driver, for what is not here.
    """

    def __init__(self) -> None:
        self._profile = tempfile.mkdtemp(prefix="eroica-chromium-")
        self.driver = Chrome(options=_options(self._profile), service=Service(DRIVER))
        self.driver.set_script_timeout(PATIENCE_S)
        self.driver.set_page_load_timeout(PATIENCE_S)
        self._marks = count()
        self._errors: list[str] = []
        self._requests: list[str] = []

    def quit(self) -> None:
        """End Chromium and remove its profile."""
        self.driver.quit()
        shutil.rmtree(self._profile, ignore_errors=True)

    def reset(self) -> None:
        """A blank page in a light desktop window with JavaScript, no cookies, nothing recorded."""
        self.javascript(True)
        self.appearance()
        self.size(*DESKTOP)
        self.driver.get("about:blank")
        self._command("Network.clearBrowserCookies")
        self._forget()

    def open(self, address: str | Path) -> None:
        """Load a page (a URL or a file); messages and requests are recorded anew from here."""
        self._forget()
        self.driver.get(address.as_uri() if isinstance(address, Path) else address)

    # ------------------------------------------------------------------ what the page did

    def errors(self) -> list[str]:
        """Errors and refused requests (content security policy, missing files) since `open`."""
        mark = f"{_MARK}{next(self._marks)}"
        self.until(lambda: self._read_up_to(mark), "the console stays silent")
        return list(self._errors)

    def requests(self) -> list[str]:
        """URLs that the page asked for since `open`, its own first; without `data:` and `blob:`, which stay inside."""
        for entry in self._log("performance"):
            event = json.loads(entry["message"])["message"]
            if event["method"] == "Network.requestWillBeSent":
                self._requests.append(event["params"]["request"]["url"])
            elif event["method"] == "Network.webSocketCreated":
                self._requests.append(event["params"]["url"])
        return [url for url in self._requests if not url.startswith(("data:", "blob:", "about:", "chrome:"))]

    def axe(self) -> list[str]:
        """Serious and critical violations of accessibility rules, and where they are; JavaScript must be on."""
        self.driver.execute_script((files("axe_core_python") / "axe.min.js").read_text(encoding="utf-8"))
        found = self.driver.execute_async_script(_RUN_AXE)
        if not isinstance(found, list):
            raise RuntimeError(f"axe failed: {found}")
        serious = [rule for rule in found if rule["impact"] in ("serious", "critical")]
        return [f"{rule['id']}: {rule['help']} {[node['target'] for node in rule['nodes']]}" for rule in serious]

    # ------------------------------------------------------------------ what the page shows

    def script(self, code: str, *arguments: object) -> Any:
        """What a function body in the page returns."""
        return self.driver.execute_script(code, *arguments)

    def all(self, selector: str) -> list[WebElement]:
        """Elements, in order; empty if there are none (yet)."""
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> WebElement:
        """The first element, waited for."""
        return cast("WebElement", self.until(lambda: next(iter(self.all(selector)), None), f"no {selector}"))

    def text(self, selector: str = "body") -> str:
        """The visible text of the first element."""
        return self.one(selector).text

    def until(self, happens: Callable[[], Any], otherwise: str = "", patience_s: float = PATIENCE_S) -> Any:
        """Ask again until the answer is true; the answer.

        Raises:
            TimeoutException: It never was.
        """
        return WebDriverWait(self.driver, patience_s, poll_frequency=0.05).until(lambda _: happens(), otherwise)

    def screenshot(self, path: Path, whole: bool = False) -> Path:
        """The window, or the whole page however long, as PNG."""
        shot = self._command("Page.captureScreenshot", format="png", captureBeyondViewport=whole, **self._clip(whole))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(shot["data"]))
        return path

    def _clip(self, whole: bool) -> dict[str, object]:
        if not whole:
            return {}
        page = self._command("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": page["width"], "height": page["height"], "scale": 1}}

    # ------------------------------------------------------------------ who looks at it

    def size(self, width: int, height: int) -> None:
        """The window in CSS pixels; below 600 wide it is a phone's, with touch."""
        self._command(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    def appearance(self, dark: bool = False) -> None:
        """What the system prefers."""
        wanted = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._command("Emulation.setEmulatedMedia", features=[wanted])

    def javascript(self, on: bool) -> None:
        """Whether pages opened from now on may run scripts; `script` still works, but `<noscript>` is not shown."""
        self._command("Emulation.setScriptExecutionDisabled", value=not on)

    def press(self, *keys: str) -> None:
        """Keys (`selenium.webdriver.common.keys.Keys`) for whatever has the focus."""
        self.driver.switch_to.active_element.send_keys(*keys)

    # ------------------------------------------------------------------

    def _command(self, name: str, **parameters: object) -> Any:
        return self.driver.execute_cdp_cmd(name, parameters)

    def _log(self, name: str) -> list[dict[str, Any]]:
        """What came in since it was last read."""
        return cast("list[dict[str, Any]]", self.driver.get_log(name))  # type: ignore[no-untyped-call]

    def _read_up_to(self, mark: str) -> bool:
        """Whether the console's messages are in up to a mark that is written now.

        Messages reach the driver a little after the page said them; the mark comes after all of them.
        """
        self.script("console.debug(arguments[0])", mark)
        entries = self._log("browser")
        self._errors += [entry["message"] for entry in entries if entry["level"] == "SEVERE"]
        return any(mark in entry["message"] for entry in entries)

    def _forget(self) -> None:
        self.errors()
        self.requests()
        self._errors.clear()
        self._requests.clear()


def _options(profile: str) -> ChromeOptions:
    options = ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*_FLAGS, f"--user-data-dir={profile}", f"--window-size={DESKTOP[0]},{DESKTOP[1]}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    options.add_experimental_option("perfLoggingPrefs", {"enableNetwork": True, "enablePage": False})
    return options
