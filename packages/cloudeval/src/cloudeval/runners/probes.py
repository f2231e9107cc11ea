"""Probes and hooks: exec, httpGet and tcpSocket against a running container."""

from cloudeval.errors import NotCoveredError
from cloudeval.runners.containers import Container
from cloudeval.runners.expectations import listens, request
from cloudeval.values import Object


class Probe:
    """The state of one probe: when it is due and how often it has passed or failed in a row.

    Args:
        kind: `startupProbe`, `livenessProbe` or `readinessProbe`.
        spec: The probe of the manifest with its defaults.
        started_at: When the container was started, in seconds.
    """

    def __init__(self, kind: str, spec: Object, started_at: float) -> None:
        self.spec = spec
        self.due_at = started_at + spec.get("initialDelaySeconds", 0)
        self.passing = kind == "livenessProbe"
        self.failed = False
        self.in_row, self.last_result = 0, False

    def tick(self, now: float, container: Container, definition: Object, address: str) -> bool:
        """Run the probe if it is due. Return whether it ran."""
        if now < self.due_at:
            return False
        period = self.spec["periodSeconds"]
        passed = run_handler(self.spec, container, definition, address, self.spec["timeoutSeconds"])
        # The kubelet probes at once again until a container is ready; then every period.
        self.due_at = now + (period if passed or self.in_row else min(period, 0.3))
        self.in_row = self.in_row + 1 if passed == self.last_result else 1
        self.last_result = passed
        if self.in_row >= self.spec["successThreshold" if passed else "failureThreshold"]:
            self.passing, self.failed = passed, not passed
        return True


def run_handler(handler: Object, container: Container, definition: Object, address: str, timeout_s: float) -> bool:
    """Run a probe's or hook's handler and return whether it succeeded."""
    if action := handler.get("exec"):
        return container.execute(action["command"], timeout_s)[0] == 0
    if action := handler.get("sleep"):
        return container.execute(["sleep", str(action["seconds"])], timeout_s)[0] in (0, 124)
    action = handler.get("httpGet") or handler.get("tcpSocket")
    if action is None:
        raise NotCoveredError("gRPC probes are not covered")
    ports = {item.get("name"): item["containerPort"] for item in definition.get("ports") or []}
    host, port = action.get("host") or address, action["port"]
    number = port if isinstance(port, int) else int(ports.get(port) or (port if port.isdigit() else 0))
    if handler.get("httpGet"):  # no image here serves HTTPS
        headers = {item["name"]: item["value"] for item in action.get("httpHeaders") or []}
        path = action.get("path") or "/"
        answer = request(host, number, path, headers=headers, timeout_s=timeout_s, has_body=False)
        return action.get("scheme") != "HTTPS" and 200 <= answer.status < 400
    return listens(host, number, timeout_s)
