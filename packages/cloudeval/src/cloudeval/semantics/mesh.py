"""Istio: which route a request takes, whether a policy admits it, and which mTLS mode holds. By reading, not by running."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from cloudeval.store import Store
from cloudeval.values import matches

Object = dict[str, Any]


@dataclass(frozen=True)
class Request:
    """A request as a sidecar or gateway sees it."""

    host: str = ""
    path: str = "/"
    method: str = "GET"
    headers: dict[str, str] = field(default_factory=dict)
    port: int = 80
    gateway: str = "mesh"
    source_labels: dict[str, str] = field(default_factory=dict)
    principal: str = ""
    source_namespace: str = "default"


def _host_fits(pattern: str, host: str) -> bool:
    if pattern == "*":
        return True
    if pattern.startswith("*."):
        return host.endswith(pattern[1:])
    short = {host, host.split(".", maxsplit=1)[0]} if host.endswith(".svc.cluster.local") or "." not in host else {host}
    full = host if "." in host else f"{host}.default.svc.cluster.local"
    return pattern in short or pattern == full


def _text_fits(match: Object | None, text: str | None, ignore_case: bool = False) -> bool:
    if match is None:
        return True
    if text is None:
        return False
    if ignore_case:
        match, text = {key: value.lower() for key, value in match.items()}, text.lower()
    if "exact" in match:
        return bool(text == match["exact"])
    if "prefix" in match:
        return text.startswith(match["prefix"])
    return ("regex" in match and re.fullmatch(match["regex"], text) is not None) or not match


def find_route(store: Store, request: Request) -> Object | None:
    """Return the HTTP route (of a VirtualService) that the request takes, or None."""
    for service in store.list("VirtualService"):
        spec = service["spec"]
        gateways = [name.rpartition("/")[2] if "/" in name else name for name in spec.get("gateways") or ["mesh"]]
        if request.gateway not in gateways or not any(_host_fits(host, request.host) for host in spec["hosts"]):
            continue
        for route in spec.get("http") or []:
            conditions = route.get("match") or [{}]
            if any(_condition_fits(item, request) for item in conditions):
                found: Object = route
                return found
    return None


def _condition_fits(item: Object, request: Request) -> bool:
    path, _, query = request.path.partition("?")
    parameters = dict(pair.partition("=")[::2] for pair in query.split("&") if pair)
    headers = {key.lower(): value for key, value in request.headers.items()}
    return (
        _text_fits(item.get("uri"), path, bool(item.get("ignoreUriCase")))
        and _text_fits(item.get("method"), request.method)
        and _text_fits(item.get("authority"), request.host)
        and all(_text_fits(match, headers.get(key.lower())) for key, match in (item.get("headers") or {}).items())
        and not any(
            _text_fits(match, headers.get(key.lower())) for key, match in (item.get("withoutHeaders") or {}).items()
        )
        and all(_text_fits(match, parameters.get(key)) for key, match in (item.get("queryParams") or {}).items())
        and item.get("port") in (None, request.port)
        and all(request.source_labels.get(key) == value for key, value in (item.get("sourceLabels") or {}).items())
    )


def destinations(store: Store, route: Object | None) -> dict[tuple[str, str], float]:
    """Return the share (0–1) of each (host, subset labels as `a=b,c=d`) that a route sends to."""
    targets = (route or {}).get("route") or []
    weights = [target.get("weight", 0 if len(targets) > 1 else 1) for target in targets]
    total = sum(weights) or 1
    shares: dict[tuple[str, str], float] = {}
    for target, weight in zip(targets, weights, strict=True):
        destination = target["destination"]
        labels = subset_labels(store, destination["host"], destination.get("subset"))
        key = (destination["host"].split(".")[0], labels)
        shares[key] = shares.get(key, 0) + weight / total
    return {key: share for key, share in shares.items() if share}


def subset_labels(store: Store, host: str, subset: str | None) -> str:
    """Return the labels of a subset; `?` where no DestinationRule defines it."""
    if subset is None:
        return ""
    for rule in store.list("DestinationRule"):
        if rule["spec"]["host"].split(".")[0] == host.split(".", maxsplit=1)[0]:
            for item in rule["spec"].get("subsets") or []:
                if item["name"] == subset:
                    return ",".join(f"{key}={value}" for key, value in sorted((item.get("labels") or {}).items()))
    return "?"


def traffic_policy(store: Store, host: str) -> Object:
    """Return the traffic policy of a host's DestinationRule."""
    for rule in store.list("DestinationRule"):
        if _host_fits(rule["spec"]["host"], host):
            return rule["spec"].get("trafficPolicy") or {}
    return {}


def mtls_mode(store: Store, namespace: str, labels: Object, port: int = 0) -> str:
    """Return the mTLS mode that holds for a workload's port: the most specific PeerAuthentication decides."""
    best, rank = "PERMISSIVE", -1
    for policy in store.list("PeerAuthentication"):
        spec, home = policy.get("spec") or {}, policy["metadata"].get("namespace", "default")
        selector = (spec.get("selector") or {}).get("matchLabels")
        if home not in (namespace, "istio-system") or (
            selector and (home != namespace or not matches({"matchLabels": selector}, labels))
        ):
            continue
        here = 2 if selector else 1 if home == namespace else 0
        mode = (
            ((spec.get("portLevelMtls") or {}).get(str(port)) or spec.get("mtls") or {}).get("mode", "UNSET")
            if selector
            else (spec.get("mtls") or {}).get("mode", "UNSET")
        )
        if here > rank and mode != "UNSET":
            best, rank = mode, here
    return str(best)


def is_authorized(store: Store, namespace: str, labels: Object, request: Request) -> bool:
    """Return True if AuthorizationPolicies admit the request: DENY first, then ALLOW; none means yes."""
    policies = []
    for policy in store.list("AuthorizationPolicy"):
        spec, home = policy.get("spec") or {}, policy["metadata"].get("namespace", "default")
        selector = (spec.get("selector") or {}).get("matchLabels")
        if home in (namespace, "istio-system") and (not selector or matches({"matchLabels": selector}, labels)):
            policies.append(spec)
    denies = [spec for spec in policies if spec.get("action") == "DENY"]
    allows = [spec for spec in policies if spec.get("action", "ALLOW") == "ALLOW"]
    if any(_rule_fits(rule, request) for spec in denies for rule in spec.get("rules") or []):
        return False
    return not allows or any(_rule_fits(rule, request) for spec in allows for rule in spec.get("rules") or [])


def _value_fits(pattern: str, text: str) -> bool:
    if pattern == "*":
        return bool(text)
    if pattern.endswith("*"):
        return text.startswith(pattern[:-1])
    return text.endswith(pattern[1:]) if pattern.startswith("*") else text == pattern


def _rule_fits(rule: Object, request: Request) -> bool:
    def fits(item: Object, key: str, text: str) -> bool:
        negated = "not" + key[0].upper() + key[1:]
        wanted, unwanted = item.get(key), item.get(negated)
        return (wanted is None or any(_value_fits(p, text) for p in wanted)) and not any(
            _value_fits(p, text) for p in unwanted or []
        )

    sources = [item["source"] for item in rule.get("from") or []]
    operations = [item["operation"] for item in rule.get("to") or []]
    by_source = not sources or any(
        fits(s, "principals", request.principal) and fits(s, "namespaces", request.source_namespace) for s in sources
    )
    by_operation = not operations or any(
        fits(o, "methods", request.method)
        and fits(o, "paths", request.path)
        and fits(o, "ports", str(request.port))
        and fits(o, "hosts", request.host)
        for o in operations
    )
    return by_source and by_operation and all(_when_fits(item, request) for item in rule.get("when") or [])


def _when_fits(item: Object, request: Request) -> bool:
    key = item["key"]
    if found := re.fullmatch(r"request\.headers\[(.+)\]", key):
        text = {name.lower(): value for name, value in request.headers.items()}.get(found[1].lower(), "")
    else:
        text = {
            "source.namespace": request.source_namespace,
            "source.principal": request.principal,
            "destination.port": str(request.port),
        }.get(key, "")
    return (not item.get("values") or any(_value_fits(p, text) for p in item["values"])) and not any(
        _value_fits(p, text) for p in item.get("notValues") or []
    )
