"""The state of a Kubeflow TrainJob kept up to date: verdict and iteration time in `status.trainerStatus.metrics`.

Kubeflow's controller puts three variables into each container of a TrainJob where a feature gate is on (KEP-2779). The
first is the address that takes the status. The second is the file with the authority that its certificate is checked
against. The third is the file with the pod's token, which is renewed under us. A post replaces the post before, also
one of the training itself: so this is off unless the setting `trainjob_status` says otherwise.

Source:
    Kubeflow Trainer, docs/proposals/2779-trainjob-progress, and pkg/apis/trainer/v1alpha1/trainjob_types.go, whose
    limits the API server checks. Progress and remaining time are left out: only the training knows how many iterations
    it will make.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import textwrap
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import httpx

from eroica import __version__
from eroica.model.verdict import Verdict
from eroica.model.words import clean, sentence, worker_list
from eroica.wire.messages import JobStatus

log = logging.getLogger("eroica.collector")

URL, CA_FILE, TOKEN_FILE = (
    "KUBEFLOW_TRAINER_STATUS_URL",
    "KUBEFLOW_TRAINER_STATUS_CA_CERT",
    "KUBEFLOW_TRAINER_STATUS_TOKEN",
)
#: The controller limits how often a service account may post.
PERIOD_S = 30.0
_TRY_S = 5.0
#: Most characters of a metric's value. One that is longer gets the whole post refused, status 422.
_LONGEST_VALUE = 64


class TrainJob:
    """Posts one job's state now and then, until `close`.

    Args:
        environ: Where Kubeflow's variables are.
        status: The job right now.
        note: Where to say what people should know.
        period_s: Seconds between two posts, if no verdict comes between.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        status: Callable[[], JobStatus],
        note: Callable[[str], object],
        period_s: float = PERIOD_S,
    ) -> None:
        self._url = environ.get(URL, "")
        self._ca_file = environ.get(CA_FILE, "")
        self._token_file = environ.get(TOKEN_FILE, "")
        self._status, self._note, self._period_s = status, note, period_s
        self._verdict: Verdict | None = None
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        if self._url.startswith("https://"):
            self._task = asyncio.get_running_loop().create_task(self._run())
        else:
            note(f"trainjob_status: {URL} is not set to an https address; no TrainJob is told")

    def judged(self, _window_id: int, verdict: Verdict) -> None:
        """A verdict stands: post it within a second. Never waits."""
        self._verdict = verdict
        self._wake.set()

    async def close(self, patience_s: float) -> None:
        """Post the last state, for so long at most."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        try:
            await asyncio.wait_for(self._post(), patience_s)
        except asyncio.TimeoutError:
            self._failed("no answer at the job's end")

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            await self._post()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._wake.wait(), self._period_s)
            await asyncio.sleep(min(1.0, self._period_s))

    async def _post(self) -> None:
        try:
            # the authority that Kubeflow names, and no other; without one those of the system
            trust = await asyncio.to_thread(ssl.create_default_context, cafile=self._ca_file or None)
            token = Path(self._token_file).read_text("ascii").strip()
            body = {"trainerStatus": trainer_status(self._status(), self._verdict)}
            async with httpx.AsyncClient(verify=trust, timeout=_TRY_S, follow_redirects=False) as client:
                headers = {"Authorization": f"Bearer {token}", "User-Agent": f"eroica/{__version__}"}
                answer = await client.post(self._url, json=body, headers=headers)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            self._failed(f"no connection ({type(error).__name__})")
        except (OSError, ValueError, ssl.SSLError) as error:
            self._failed(f"its certificate or token cannot be read ({type(error).__name__})")
        else:
            if not answer.is_success:
                self._failed(f"it answers {answer.status_code}")

    def _failed(self, why: str) -> None:
        log.warning("the TrainJob was not told: %s", why)
        self._note(f"the TrainJob's status could not be posted: {why}")


def trainer_status(status: JobStatus, verdict: Verdict | None) -> dict[str, Any]:
    """Build `status.trainerStatus`; its values are texts of 1 to 64 characters.

    The verdict's sentence is longer: it goes on in `eroica_summary_2` and so forth.

    Args:
        status: The job right now.
        verdict: The newest one, None before there is any.
    """
    metrics = {"eroica_iterations": str(status.iteration)}
    for name, value_ms in (("mean", status.mean_ms), ("best", status.best_ms)):
        if value_ms is not None:
            metrics[f"eroica_iteration_{name}_seconds"] = f"{value_ms / 1000:.6g}"
    if verdict is not None:
        metrics["eroica_verdict"] = verdict.verdict
        pieces = textwrap.wrap(sentence(verdict.summary), _LONGEST_VALUE)
        names = ("eroica_summary", *(f"eroica_summary_{number}" for number in range(2, len(pieces) + 1)))
        metrics |= dict(zip(names, pieces, strict=False))
        cause = verdict.cause
        if cause is not None:
            metrics["eroica_cause"] = clean(cause.cause, 60)
            metrics["eroica_function"] = clean(cause.function.name, _LONGEST_VALUE)
            who = worker_list(cause.workers) if cause.workers else cause.scope
            metrics["eroica_workers"] = clean(who, _LONGEST_VALUE)
            metrics |= {} if cause.gain is None else {"eroica_gain_ratio": f"{cause.gain:.3g}"}
    now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    listed = [{"name": name, "value": value} for name, value in metrics.items() if value]
    return {"metrics": listed, "lastUpdatedTime": now}
