"""Istio: which route a request takes, whether a policy admits it, and which mTLS mode holds. By reading, not by running."""

import re
from dataclasses import dataclass, field
from typing import Any

from cloudeval.store import Objects, Store
from cloudeval.values import Object, dig, matches


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

    def header(self, name: str) -> str | None:
        """Return a header, whatever the case of its name."""
        return next((value for key, value in self.headers.items() if key.lower() == name.lower()), None)


def _short(host: str) -> str:
    return host.split(".", maxsplit=1)[0]


def _host_fits(pattern: str, host: str) -> bool:
    if pattern.startswith("*"):
        return host.endswith(pattern[1:])
    names = {host, _short(host)} if host.endswith(".svc.cluster.local") else {host}
    return pattern in names or pattern == (host if "." in host else f"{host}.default.svc.cluster.local")


def _text_fits(match: Object | None, text: str | None, ignore_case: bool = False) -> bool:
    if match is None or text is None:
        return match is None
    if ignore_case:
        match, text = {key: value.lower() for key, value in match.items()}, text.lower()
    if "exact" in match:
        return bool(text == match["exact"])
    if "prefix" in match:
        return text.startswith(match["prefix"])
    return ("regex" in match and re.fullmatch(match["regex"], text) is not None) or not match


def route(store: Store, host: str = "", path: str = "/", **options: Any) -> Object:
    """Return the HTTP route (of a VirtualService) that a request takes; empty if none does. `Request` has the options."""
    request = Request(host, path, **options)
    for service in store.list("VirtualService"):
        spec = service["spec"]
        gateways = [name.rpartition("/")[2] for name in spec.get("gateways") or ["mesh"]]
        if request.gateway in gateways and any(_host_fits(pattern, host) for pattern in spec["hosts"]):
            for item in spec.get("http") or []:
                if any(_condition_fits(match, request) for match in item.get("match") or [{}]):
                    found: Object = item
                    return found
    return {}


def _condition_fits(item: Object, request: Request) -> bool:
    path, _, query = request.path.partition("?")
    parameters = dict(pair.partition("=")[::2] for pair in query.split("&") if pair)
    without = item.get("withoutHeaders") or {}
    return (
        _text_fits(item.get("uri"), path, bool(item.get("ignoreUriCase")))
        and _text_fits(item.get("method"), request.method)
        and _text_fits(item.get("authority"), request.host)
        and all(_text_fits(match, request.header(key)) for key, match in (item.get("headers") or {}).items())
        and not any(_text_fits(match, request.header(key)) for key, match in without.items())
        and all(_text_fits(match, parameters.get(key)) for key, match in (item.get("queryParams") or {}).items())
        and item.get("port") in (None, request.port)
        and matches({"matchLabels": item.get("sourceLabels")}, request.source_labels)
    )


def shares(store: Store, host: str = "", path: str = "/", **options: Any) -> dict[tuple[str, str], float]:
    """Return the share (0–1) of each (host, subset labels as `a=b,c=d`) that a request's route sends to."""
    targets = route(store, host, path, **options).get("route") or []
    weights = [target.get("weight", 0 if len(targets) > 1 else 1) for target in targets]
    found: dict[tuple[str, str], float] = {}
    for target, weight in zip(targets, weights, strict=True):
        name = target["destination"]["host"]
        key = (_short(name), _subset_labels(store, name, target["destination"].get("subset")))
        found[key] = found.get(key, 0) + weight / (sum(weights) or 1)
    return {key: share for key, share in found.items() if share}


def _subset_labels(store: Store, host: str, subset: str | None) -> str:
    """Return the labels of a subset; `?` where no DestinationRule defines it."""
    if subset is None:
        return ""
    rules = [rule["spec"] for rule in store.list("DestinationRule") if _short(rule["spec"]["host"]) == _short(host)]
    for item in [item for spec in rules for item in spec.get("subsets") or []]:
        if item["name"] == subset:
            return ",".join(f"{key}={value}" for key, value in sorted((item.get("labels") or {}).items()))
    return "?"


def traffic(store: Store, host: str) -> Object:
    """Return the traffic policy of a host's DestinationRule."""
    rules = [rule["spec"] for rule in store.list("DestinationRule") if _host_fits(rule["spec"]["host"], host)]
    return rules[0].get("trafficPolicy") or {} if rules else {}


def mtls(store: Store, labels: Object, namespace: str = "default", port: int = 0) -> str:
    """Return the mTLS mode that holds for a workload's port: the most specific PeerAuthentication decides."""
    best, rank = "PERMISSIVE", -1
    for policy in store.list("PeerAuthentication"):
        spec, home = policy.get("spec") or {}, policy["metadata"].get("namespace", "default")
        selector = dig(spec, "selector.matchLabels")
        elsewhere = home != namespace or not matches({"matchLabels": selector}, labels)
        if home not in (namespace, "istio-system") or (selector and elsewhere):
            continue
        here = 2 if selector else 1 if home == namespace else 0
        of_port = dig(spec, "portLevelMtls", {}).get(str(port)) if selector else None
        mode = (of_port or spec.get("mtls") or {}).get("mode", "UNSET")
        if here > rank and mode != "UNSET":
            best, rank = mode, here
    return str(best)


def authorized(store: Store, labels: Object, namespace: str = "default", **options: Any) -> bool:
    """Return True if AuthorizationPolicies admit a request to a workload: DENY first, then ALLOW; none means yes."""
    request = Request(**options)
    rules: dict[str, Objects] = {}
    for policy in store.list("AuthorizationPolicy"):
        spec, home = policy.get("spec") or {}, policy["metadata"].get("namespace", "default")
        if home in (namespace, "istio-system") and matches({"matchLabels": dig(spec, "selector.matchLabels")}, labels):
            rules.setdefault(spec.get("action", "ALLOW"), []).extend(spec.get("rules") or [])
    if any(_rule_fits(rule, request) for rule in rules.get("DENY", [])):
        return False
    return "ALLOW" not in rules or any(_rule_fits(rule, request) for rule in rules["ALLOW"])


def _value_fits(pattern: str, text: str) -> bool:
    if pattern == "*":
        return bool(text)
    if pattern.endswith("*"):
        return text.startswith(pattern[:-1])
    return text.endswith(pattern[1:]) if pattern.startswith("*") else text == pattern


def _fits(item: Object, key: str, value: Any) -> bool:
    """Return True if a value is among the patterns of a key, and not among those of its negation."""
    wanted, unwanted = item.get(key), item.get("not" + key[0].upper() + key[1:]) or []

    def among(patterns: list[str]) -> bool:
        return any(_value_fits(pattern, str(value)) for pattern in patterns)

    return (wanted is None or among(wanted)) and not among(unwanted)


def _rule_fits(rule: Object, request: Request) -> bool:
    sources = [item["source"] for item in rule.get("from") or []] or [{}]
    operations = [item["operation"] for item in rule.get("to") or []] or [{}]
    source = {"principals": request.principal, "namespaces": request.source_namespace}
    operation = {"methods": request.method, "paths": request.path, "ports": request.port, "hosts": request.host}
    known = {"source.namespace": request.source_namespace, "source.principal": request.principal}
    known["destination.port"] = str(request.port)

    def value_of(key: str) -> str:
        found = re.fullmatch(r"request\.headers\[(.+)\]", key)
        return (request.header(found[1]) or "") if found else known.get(key, "")

    return (
        any(all(_fits(item, key, value) for key, value in source.items()) for item in sources)
        and any(all(_fits(item, key, value) for key, value in operation.items()) for item in operations)
        and all(_fits(item, "values", value_of(item["key"])) for item in rule.get("when") or [])
    )
