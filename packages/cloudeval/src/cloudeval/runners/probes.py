"""Probes and hooks: exec, httpGet and tcpSocket against a running container."""

from __future__ import annotations

import http.client
import socket
import ssl
from typing import Any

from cloudeval.errors import NotCoveredError
from cloudeval.runners.containers import Container

Object = dict[str, Any]


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
        passed = run_handler(self.spec, container, definition, address, self.spec["timeoutSeconds"])
        # The kubelet probes at once again until a container is ready; then every period.
        self.due_at = now + (
            self.spec["periodSeconds"] if passed or self.in_row else min(self.spec["periodSeconds"], 0.3)
        )
        self.in_row = self.in_row + 1 if passed == self.last_result else 1
        self.last_result = passed
        if passed and self.in_row >= self.spec["successThreshold"]:
            self.passing, self.failed = True, False
        elif not passed and self.in_row >= self.spec["failureThreshold"]:
            self.passing, self.failed = False, True
        return True


def run_handler(handler: Object, container: Container, definition: Object, address: str, timeout_s: float) -> bool:
    """Run a probe's or hook's handler and return whether it succeeded."""
    if action := handler.get("exec"):
        return container.execute(action["command"], timeout_s)[0] == 0
    if action := handler.get("httpGet"):
        return _http_get(action, action.get("host") or address, _port(action["port"], definition), timeout_s)
    if action := handler.get("tcpSocket"):
        try:
            socket.create_connection(
                (action.get("host") or address, _port(action["port"], definition)), timeout_s
            ).close()
        except OSError:
            return False
        return True
    if action := handler.get("sleep"):
        return container.execute(["sleep", str(action["seconds"])], timeout_s)[0] in (0, 124)
    raise NotCoveredError("gRPC probes are not covered")


def _port(port: int | str, definition: Object) -> int:
    if isinstance(port, int):
        return port
    named = {item.get("name"): item["containerPort"] for item in definition.get("ports") or []}
    return int(named.get(port, 0) or (port if port.isdigit() else 0))


def _http_get(action: Object, host: str, port: int, timeout_s: float) -> bool:
    headers = {item["name"]: item["value"] for item in action.get("httpHeaders") or []}
    secure = action.get("scheme") == "HTTPS"
    connection = (
        http.client.HTTPSConnection(host, port, timeout=timeout_s, context=ssl._create_unverified_context())
        if secure
        else (http.client.HTTPConnection(host, port, timeout=timeout_s))
    )
    try:
        connection.request("GET", action.get("path") or "/", headers=headers)
        return 200 <= connection.getresponse().status < 400
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
