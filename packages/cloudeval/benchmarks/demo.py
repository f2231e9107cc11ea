"""Ten problems by references, mutants and a tiny endpoint over HTTP, then a leaderboard page. Under two minutes."""

import http.server
import json
import sys
import tempfile
import threading
import time
from pathlib import Path

from cloudeval import campaign, problems, report
from cloudeval.analyse import summarize
from cloudeval.models import Endpoint
from cloudeval.runners import sandbox

CHOSEN = (
    "pod-web",
    "pod-secret-file",
    "pod-args",
    "deploy-service",
    "job-parallel",
    "cron-basic",
    "svc-clusterip",
    "envoy-prefix",
    "envoy-headers",
    "istio-split",
)


class TinyModel(http.server.BaseHTTPRequestHandler):
    """An OpenAI-compatible endpoint whose model knows one manifest by heart and says it to everything."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))["messages"][0]["content"]
        text = "Here is the manifest:\n```yaml\napiVersion: v1\nkind: Pod\nmetadata:\n  name: web\nspec:\n  containers:\n  - name: web\n    image: web:1.0\n```\nGood luck!"
        body = {
            "choices": [{"message": {"content": text}}],
            "usage": {"prompt_tokens": len(asked.split()), "completion_tokens": 20},
        }
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def main() -> None:
    if reason := sandbox.can_run():
        print(f"{reason}; Kubernetes and Envoy problems are skipped, Istio still runs")
    started = time.monotonic()
    loaded = [problem for problem in problems.load() if problem.id in CHOSEN]
    folder = Path(tempfile.mkdtemp(prefix="cloudeval-demo-"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), TinyModel)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = Endpoint(f"http://127.0.0.1:{server.server_port}/v1", "tiny", prices=(0.5, 1.5), cache=False)
    results = campaign.ResultsFile(folder / "results.jsonl")
    given = campaign.from_problems(campaign.plans(loaded, "references", ["full"]), "reference")
    given += campaign.from_problems(campaign.plans(loaded, "mutants", ["full"], samples=3), "mutant")
    given += campaign.from_endpoint(campaign.plans(loaded, "tiny-model"), endpoint)

    def show(result: object) -> None:
        print(".", end="", flush=True)

    found = campaign.run_answers(given, results, workers=2, on_result=show)
    results.close()
    server.shutdown()
    report.write(folder / "leaderboard.html", found)
    print("\n" + report.table(summarize(found)))
    print(f"{len(found)} answers in {time.monotonic() - started:.0f} s; the page: {folder / 'leaderboard.html'}")
    good = all(
        result.verdict.passed == (result.source == "references") for result in found if result.source != "tiny-model"
    )
    sys.exit(0 if good or sandbox.can_run() else 1)


if __name__ == "__main__":
    main()
