"""Rules for single values: names, labels, ports, quantities, selectors, as Kubernetes' validation has them."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Any

from cloudeval.schema import Fault, quantity

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
SERVICE = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
PORT_NAME = re.compile(r"(?=.*[a-z])[a-z0-9]([-a-z0-9]*[a-z0-9])?")
CONFIG_KEY = re.compile(r"[-._a-zA-Z0-9]+")
ENV_NAME = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
PATH_SEGMENT = re.compile(r"[^/%]+")


class Faults(list[Fault]):
    """The reasons found so far, with short checks that add one where a value breaks a rule."""

    def add(self, path: str, reason: str) -> None:
        """Add one reason."""
        self.append(Fault(path, reason, "admission"))

    def require(self, condition: Any, path: str, reason: str) -> bool:
        """Add the reason unless the condition holds. Return whether it holds."""
        if not condition:
            self.add(path, reason)
        return bool(condition)

    def one_of(self, value: Any, allowed: Iterable[str], path: str) -> None:
        """Check an optional value against a set."""
        allowed = tuple(allowed)
        if value not in (None, "") and value not in allowed:
            self.add(path, f'"{value}" must be one of {", ".join(allowed)}')

    def label_name(self, value: Any, path: str) -> None:
        """Check an RFC 1123 label of at most 63 characters."""
        if not value:
            self.add(path, "is required")
        elif len(str(value)) > 63 or not LABEL.fullmatch(str(value)):
            self.add(path, f'"{value}" must be at most 63 lower-case letters, digits or "-"')

    def subdomain(self, value: Any, path: str) -> None:
        """Check an RFC 1123 subdomain of at most 253 characters."""
        if not value:
            self.add(path, "is required")
        elif len(str(value)) > 253 or not SUBDOMAIN.fullmatch(str(value)):
            self.add(path, f'"{value}" must be lower-case letters, digits, "-" or "."')

    def qualified(self, value: str, path: str) -> None:
        """Check a label or annotation key."""
        prefix, slash, name = value.rpartition("/")
        if slash and (not prefix or len(prefix) > 253 or not SUBDOMAIN.fullmatch(prefix)):
            self.add(path, f'the prefix of "{value}" must be a DNS subdomain')
        if not name or len(name) > 63 or not QUALIFIED.fullmatch(name):
            self.add(
                path, f'"{value}" is no valid key: at most 63 letters, digits, "-", "_" or "." after an optional prefix'
            )

    def labels(self, labels: dict[str, Any] | None, path: str) -> None:
        """Check label keys and values."""
        for key, value in (labels or {}).items():
            self.qualified(key, f"{path}.{key}")
            if value and (len(str(value)) > 63 or not QUALIFIED.fullmatch(str(value))):
                self.add(
                    f"{path}.{key}", f'the label value "{value}" must be at most 63 letters, digits, "-", "_" or "."'
                )

    def port(self, value: Any, path: str) -> None:
        """Check a port number."""
        if not isinstance(value, int) or not 1 <= value <= 65535:
            self.add(path, f"{value} must be between 1 and 65535")

    def port_or_name(self, value: Any, path: str) -> None:
        """Check a port number or the name of a container port."""
        if isinstance(value, str):
            self.port_name(value, path)
        else:
            self.port(value, path)

    def port_name(self, value: str, path: str) -> None:
        """Check the name of a container port."""
        if len(value) > 15 or not PORT_NAME.fullmatch(value) or "--" in value:
            self.add(path, f'"{value}" must be at most 15 lower-case letters, digits or single "-", with a letter')

    def at_least(self, value: Any, least: int, path: str) -> None:
        """Check an optional number."""
        if isinstance(value, (int, float)) and value < least:
            self.add(path, f"{value} must be at least {least}")

    def config_key(self, key: str, path: str) -> None:
        """Check a key of a ConfigMap or Secret."""
        if not CONFIG_KEY.fullmatch(key) or len(key) > 253 or key in (".", "..") or key.startswith(".."):
            self.add(path, f'the key "{key}" must be letters, digits, "-", "_" or "." and not start with ".."')

    def relative(self, value: Any, path: str) -> None:
        """Check a path below a volume."""
        if not value:
            self.add(path, "is required")
        elif str(value).startswith("/") or ".." in str(value).split("/"):
            self.add(path, f'"{value}" must be relative and must not contain ".."')

    def selector(self, selector: dict[str, Any] | None, path: str) -> None:
        """Check a label selector."""
        selector = selector or {}
        self.labels(selector.get("matchLabels"), f"{path}.matchLabels")
        for index, item in enumerate(selector.get("matchExpressions") or []):
            at = f"{path}.matchExpressions[{index}]"
            self.qualified(item.get("key") or "", f"{at}.key")
            self.expression(item, at, ("In", "NotIn", "Exists", "DoesNotExist"))

    def expression(self, item: dict[str, Any], path: str, operators: tuple[str, ...]) -> None:
        """Check the operator of an expression against its values."""
        operator, values = item.get("operator"), item.get("values") or []
        self.require(operator in operators, f"{path}.operator", f'"{operator}" must be one of {", ".join(operators)}')
        if operator in ("In", "NotIn"):
            self.require(values, f"{path}.values", f"is required with {operator}")
        elif operator in ("Exists", "DoesNotExist"):
            self.require(not values, f"{path}.values", f"must be empty with {operator}")
        elif operator in ("Gt", "Lt"):
            self.require(len(values) == 1, f"{path}.values", f"needs one value with {operator}")

    def unique(self, items: Iterable[Any], path: str, what: str) -> None:
        """Check that no value stands twice."""
        seen: set[Any] = set()
        for item in items:
            if item is not None and item in seen:
                self.add(path, f'the {what} "{item}" stands twice')
            seen.add(item)

    def resources(self, resources: dict[str, Any] | None, path: str) -> None:
        """Check requests and limits."""
        resources = resources or {}
        limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
        for part, amounts in (("limits", limits), ("requests", requests)):
            for name, amount in amounts.items():
                self.qualified(name, f"{path}.{part}.{name}")
                if (
                    "/" not in name
                    and name not in ("cpu", "memory", "ephemeral-storage", "storage")
                    and not name.startswith("hugepages-")
                ):
                    self.add(
                        f"{path}.{part}.{name}",
                        f'"{name}" is no standard resource; others need a prefix such as example.com/{name}',
                    )
                self.require(quantity(amount) >= 0, f"{path}.{part}.{name}", f"{amount} must not be negative")
        for name, amount in requests.items():
            if name in limits and quantity(amount) > quantity(limits[name]):
                self.add(f"{path}.requests.{name}", f"{amount} must not exceed the limit {limits[name]}")
            if "/" in name and "kubernetes.io/" not in name and name not in limits:
                self.add(f"{path}.limits.{name}", "an extended resource needs a limit that equals its request")


def matches(selector: dict[str, Any] | None, labels: dict[str, Any] | None) -> bool:
    """Return True if a label selector selects the labels. None selects nothing, an empty one everything."""
    if selector is None:
        return False
    labels = labels or {}
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(expression_holds(item, labels) for item in selector.get("matchExpressions") or [])


def expression_holds(item: dict[str, Any], labels: dict[str, Any]) -> bool:
    """Return True if one expression of a selector holds for the labels."""
    key, values = item["key"], item.get("values") or []
    match item["operator"]:
        case "In":
            return key in labels and labels[key] in values
        case "NotIn":
            return labels.get(key) not in values if key in labels else True
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
        case "Gt":
            return key in labels and int(labels[key]) > int(values[0])
        case "Lt":
            return key in labels and int(labels[key]) < int(values[0])
    return False


def is_ip(value: str) -> bool:
    """Return True if the text is an IP address."""
    try:
        ipaddress.ip_address(value)
    except ValueError:
        return False
    return True
