"""Judges in a real cluster through kubectl: server-side dry run, apply into a fresh namespace, the check, removal."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import time
import uuid
from types import SimpleNamespace
from typing import Any

import msgspec
import yaml

from cloudeval.admission.rules import CLUSTER_SCOPED
from cloudeval.errors import RunnerError, UsageError
from cloudeval.problems import Variant, check_function
from cloudeval.reading import values
from cloudeval.records import RIGHT, UNJUDGED, WRONG, Verdict
from cloudeval.runners.cluster import split_reference
from cloudeval.runners.expectations import CheckFailedError, Checks, Response
from cloudeval.store import is_ready
from cloudeval.values import Object


class RealCluster(Checks):
    """The part of the check API that works in any cluster: objects, logs, exec, HTTP through the API server."""

    patience_s = 60.0

    def __init__(self, namespace: str) -> None:
        super().__init__()
        if shutil.which("kubectl") is None:
            raise UsageError("kubectl is missing; install kubernetes-client")
        self.namespace = namespace

    def kubectl(
        self, *arguments: str, text: str | None = None, timeout_s: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl in the namespace."""
        command = ["kubectl", "-n", self.namespace, *arguments]
        try:
            return subprocess.run(command, input=text, capture_output=True, text=True, timeout=timeout_s, check=False)
        except subprocess.TimeoutExpired as error:
            raise RunnerError(f"kubectl {arguments[0]} did not end within {timeout_s:.0f} s") from error

    def dry_run(self, text: str) -> str:
        """Return why the server refuses the manifests, empty if it accepts them."""
        done = self.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", text=text)
        if done.returncode and re.search(r"connection refused|Unable to connect|no such host", done.stderr):
            raise RunnerError(f"the cluster cannot be reached: {done.stderr.strip()[:200]}")
        return done.stderr.strip() if done.returncode else ""

    def apply(self, text: str) -> None:
        """Apply manifests."""
        done = self.kubectl("apply", "-f", "-", text=text)
        if done.returncode:
            raise RunnerError(f"kubectl apply failed: {done.stderr.strip()[:300]}")

    def get(self, reference: str, namespace: str = "") -> Object:
        """Return an object, or fail because the answer does not have it."""
        found = self.find(reference, namespace)
        if found is None:
            self.fail(f"there is no {reference}")
        return found

    def find(self, reference: str, namespace: str = "") -> Object | None:
        """Return an object, or None."""
        kind, name = split_reference(reference)
        done = self.kubectl("get", kind, name, "-o", "json", *(["-n", namespace] if namespace else []))
        return json.loads(done.stdout) if done.returncode == 0 else None

    def pods(self, owner: str = "", *, labels: Object | None = None) -> list[Object]:
        """Return pods by labels, or those that a workload selects."""
        if owner:
            labels = self.get(owner)["spec"]["selector"]["matchLabels"]
        selector = ",".join(f"{key}={value}" for key, value in (labels or {}).items())
        done = self.kubectl("get", "pods", "-l", selector, "-o", "json")
        return list(json.loads(done.stdout)["items"]) if done.returncode == 0 else []

    def ready(self, reference: str, timeout_s: float | None = None) -> Any:
        """Wait until a pod or workload is ready."""
        self._behaved()

        def done() -> Any:
            value = self.get(reference)
            if value["kind"] == "Pod":
                return value if is_ready(value) else None
            wanted, status = value["spec"].get("replicas", 1), value.get("status") or {}
            return self.pods(reference) if status.get("readyReplicas", status.get("numberReady", 0)) >= wanted else None

        return self.eventually(done, f"{reference} is not ready", timeout_s)

    def logs(self, pod: str, container: str | None = None) -> str:
        """Return what a container has printed."""
        self._behaved()
        return self.kubectl("logs", pod, *(["-c", container] if container else [])).stdout.strip()

    def exec(self, pod: str, command: str, container: str | None = None) -> tuple[int, str]:
        """Run a shell command in a container."""
        self._behaved()
        done = self.kubectl("exec", pod, *(["-c", container] if container else []), "--", "sh", "-c", command)
        return done.returncode, done.stdout.strip()

    def http(self, target: str, port: int, path: str = "/", **_options: Any) -> Response:
        """Send a GET through the API server's proxy."""
        self._behaved()
        kind, _, name = target.rpartition("/")
        plural = "services" if kind in ("svc", "service") else "pods"
        done = self.kubectl("get", "--raw", f"/api/v1/namespaces/{self.namespace}/{plural}/{name}:{port}/proxy{path}")
        return Response(200 if done.returncode == 0 else 503, done.stdout.strip(), {})

    def step(self) -> None:
        """Wait a moment."""
        time.sleep(0.5)


def judge(variant: Variant, text: str) -> Verdict:
    """Judge an answer in the cluster of KUBECONFIG. Everything that was made is removed afterwards."""
    if not os.environ.get("KUBECONFIG"):
        raise UsageError("--cluster needs KUBECONFIG")
    if variant.runner == "envoy":
        raise UsageError("an Envoy configuration is not judged by a cluster; leave out --cluster")
    started = time.monotonic()
    cluster = RealCluster(f"cloudeval-{uuid.uuid4().hex[:8]}")
    try:
        made = cluster.kubectl("create", "namespace", cluster.namespace)
        if made.returncode:
            return Verdict(UNJUDGED, "runner", f"no namespace could be made: {made.stderr.strip()[:200]}")
        outcome = _judged(cluster, variant, text)
    except RunnerError as error:
        outcome = Verdict(UNJUDGED, "runner", str(error))
    finally:
        _remove(cluster, text)
    return msgspec.structs.replace(outcome, seconds=round(time.monotonic() - started, 3))


def _judged(cluster: RealCluster, variant: Variant, text: str) -> Verdict:
    if variant.given:
        cluster.apply(variant.given)
    if refusal := cluster.dry_run(text):
        return Verdict(WRONG, "admission", refusal.splitlines()[0], faults=refusal.splitlines())
    cluster.apply(text)
    try:
        check_function(variant)(cluster, SimpleNamespace(**variant.variables))
    except CheckFailedError as failure:
        nodes = cluster.kubectl("get", "nodes", "-o", "name").stdout.strip()
        if cluster.how == "behaviour" and not nodes:
            return Verdict(UNJUDGED, "not covered", "the cluster has no node on which pods could run")
        return Verdict(WRONG, cluster.how, str(failure))
    except AttributeError as error:
        return Verdict(UNJUDGED, "not covered", f"this check cannot run in a cluster: {error}")
    return Verdict(RIGHT, "behaviour" if cluster.saw_behaviour else "semantics")


def _remove(cluster: RealCluster, text: str) -> None:
    """Delete what does not belong to the namespace, then the namespace."""
    with contextlib.suppress(Exception):
        outside = [value for value in values(text) if isinstance(value, dict) and value.get("kind") in CLUSTER_SCOPED]
        if outside:
            cluster.kubectl("delete", "--ignore-not-found", "--wait=false", "-f", "-", text=yaml.safe_dump_all(outside))
    cluster.kubectl("delete", "namespace", cluster.namespace, "--wait=false")
