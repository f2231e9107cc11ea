"""Reads nested objects, label selectors and addresses as Kubernetes does."""

import ipaddress
from typing import Any

Object = dict[str, Any]


def dig(value: Any, path: str, default: Any = None) -> Any:
    """Return what stands at a dotted path, or the default if it or a parent is missing or null."""
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return default if value is None else value


def matches(selector: Object | None, labels: Object | None) -> bool:
    """Return True if a label selector selects the labels. None selects nothing, an empty one everything."""
    if selector is None:
        return False
    labels = labels or {}
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(expression_holds(item, labels) for item in selector.get("matchExpressions") or [])


def expression_holds(item: Object, labels: Object) -> bool:
    """Return True if one expression of a selector holds for the labels."""
    key, values = item["key"], item.get("values") or []
    match item["operator"]:
        case "In":
            return key in labels and labels[key] in values
        case "NotIn":
            return key not in labels or labels[key] not in values
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
