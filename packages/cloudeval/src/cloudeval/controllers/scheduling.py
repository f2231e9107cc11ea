"""A small scheduler: places pods on nodes by selectors, affinity, taints, free resources and spread."""

from __future__ import annotations

from typing import Any

from cloudeval.schema import quantity
from cloudeval.store import Store, is_active
from cloudeval.values import expression_holds, matches

Object = dict[str, Any]


def tolerates(tolerations: list[Object], taint: Object) -> bool:
    """Return True if one of the tolerations covers the taint."""
    for item in tolerations:
        if item.get("effect") and item["effect"] != taint["effect"]:
            continue
        if item.get("key") and item["key"] != taint["key"]:
            continue
        if item.get("operator") == "Exists" or (item.get("value") or "") == (taint.get("value") or ""):
            return True
    return False


def selects_node(spec: Object, node: Object) -> bool:
    """Return True if nodeSelector and required node affinity admit the node."""
    labels = node["metadata"].get("labels") or {}
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    return required is None or any(_term_holds(term, node) for term in required["nodeSelectorTerms"])


def _term_holds(term: Object, node: Object) -> bool:
    expressions, fields = term.get("matchExpressions") or [], term.get("matchFields") or []
    labels = node["metadata"].get("labels") or {}
    name = {"metadata.name": node["metadata"]["name"]}
    return (
        bool(expressions or fields)
        and all(expression_holds(item, labels) for item in expressions)
        and all(expression_holds(item, name) for item in fields)
    )


def fits_node(spec: Object, node: Object) -> bool:
    """Return True if the pod may run on the node: selector, affinity, taints."""
    taints = [
        taint
        for taint in (node.get("spec") or {}).get("taints") or []
        if taint["effect"] in ("NoSchedule", "NoExecute")
    ]
    return selects_node(spec, node) and all(tolerates(spec.get("tolerations") or [], taint) for taint in taints)


def requests(spec: Object, resource: str) -> float:
    """Return what the pod asks for: the sum of its containers, or its largest init container if that is more."""

    def of(container: Object) -> float:
        return quantity(((container.get("resources") or {}).get("requests") or {}).get(resource, 0))

    init = [of(container) for container in spec.get("initContainers") or []]
    return max(sum(map(of, spec["containers"])), *init, 0.0)


def schedule(store: Store, _now: float) -> None:
    """Bind every waiting pod that fits to the best node; others keep a PodScheduled condition with the reason."""
    nodes = store.list("Node")
    waiting = [pod for pod in store.list("Pod") if not pod["spec"].get("nodeName") and is_active(pod)]
    for pod in sorted(waiting, key=lambda pod: -pod["spec"].get("priority", 0)):
        if pod["spec"].get("schedulingGates"):
            continue
        reasons: dict[str, int] = {}
        fitting = []
        for node in nodes:
            reason = _refuse(store, pod, node, nodes)
            if reason is None:
                fitting.append(node)
            else:
                reasons[reason] = reasons.get(reason, 0) + 1
        status = pod.setdefault("status", {"phase": "Pending"})
        if fitting:
            best = max(fitting, key=lambda node: _score(store, pod, node, nodes))
            pod["spec"]["nodeName"] = best["metadata"]["name"]
        else:
            message = f"0/{len(nodes)} nodes are available: " + ", ".join(
                f"{count} {reason}" for reason, count in reasons.items()
            )
            status["conditions"] = [
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
            ]


def _on(store: Store, node: Object) -> list[Object]:
    return [
        pod for pod in store.list("Pod") if pod["spec"].get("nodeName") == node["metadata"]["name"] and is_active(pod)
    ]


def _refuse(store: Store, pod: Object, node: Object, nodes: list[Object]) -> str | None:
    spec = pod["spec"]
    if not selects_node(spec, node):
        return "did not match the pod's node affinity/selector"
    if not fits_node(spec, node) or (node.get("spec") or {}).get("unschedulable"):
        return "had a taint that the pod does not tolerate"
    others = _on(store, node)
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    names = {
        name for container in spec["containers"] for name in ((container.get("resources") or {}).get("requests") or {})
    }
    for name in sorted(names):
        if requests(spec, name) + sum(requests(other["spec"], name) for other in others) > quantity(
            allocatable.get(name, 0)
        ):
            return f"had too little {name}"
    wanted = {
        port["hostPort"]
        for container in spec["containers"]
        for port in container.get("ports") or []
        if port.get("hostPort")
    }
    taken = {
        port.get("hostPort")
        for other in others
        for container in other["spec"]["containers"]
        for port in container.get("ports") or []
    }
    if wanted & taken:
        return "had no free host port"
    affinity = spec.get("affinity") or {}
    for term in (affinity.get("podAntiAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution") or []:
        if _peers(store, pod, term, node, nodes):
            return "did not match the pod's anti-affinity rules"
    for term in (affinity.get("podAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution") or []:
        if not _peers(store, pod, term, node, nodes) and not (
            matches(term.get("labelSelector"), pod["metadata"].get("labels"))
            and not any(_peers(store, pod, term, other, nodes) for other in nodes)
        ):
            return "did not match the pod's affinity rules"
    return _skewed(store, pod, node, nodes)


def _peers(store: Store, pod: Object, term: Object, node: Object, nodes: list[Object]) -> list[Object]:
    key = term["topologyKey"]
    domain = (node["metadata"].get("labels") or {}).get(key)
    same = [
        other for other in nodes if domain is not None and (other["metadata"].get("labels") or {}).get(key) == domain
    ]
    namespaces = term.get("namespaces") or [pod["metadata"].get("namespace", "default")]
    return [
        other
        for place in same
        for other in _on(store, place)
        if other is not pod
        and other["metadata"].get("namespace", "default") in namespaces
        and matches(term.get("labelSelector"), other["metadata"].get("labels"))
    ]


def _counts(store: Store, pod: Object, constraint: Object, nodes: list[Object]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for node in nodes:
        domain = (node["metadata"].get("labels") or {}).get(constraint["topologyKey"])
        if domain is None or not fits_node(pod["spec"], node):
            continue
        members = [
            other
            for other in _on(store, node)
            if matches(constraint.get("labelSelector"), other["metadata"].get("labels"))
        ]
        counts[domain] = counts.get(domain, 0) + len(members)
    return counts


def _skewed(store: Store, pod: Object, node: Object, nodes: list[Object]) -> str | None:
    for constraint in pod["spec"].get("topologySpreadConstraints") or []:
        if constraint["whenUnsatisfiable"] != "DoNotSchedule":
            continue
        domain = (node["metadata"].get("labels") or {}).get(constraint["topologyKey"])
        counts = _counts(store, pod, constraint, nodes)
        if domain not in counts:
            return "lacked the topology key of a spread constraint"
        if (
            counts[domain]
            + matches(constraint.get("labelSelector"), pod["metadata"].get("labels"))
            - min(counts.values())
            > constraint["maxSkew"]
        ):
            return "did not match the pod's topology spread constraints"
    return None


def _score(store: Store, pod: Object, node: Object, nodes: list[Object]) -> float:
    affinity = pod["spec"].get("affinity") or {}
    score = -0.01 * len(_on(store, node))
    for item in (affinity.get("nodeAffinity") or {}).get("preferredDuringSchedulingIgnoredDuringExecution") or []:
        score += item["weight"] * _term_holds(item["preference"], node)
    for kind, sign in (("podAffinity", 1), ("podAntiAffinity", -1)):
        for item in (affinity.get(kind) or {}).get("preferredDuringSchedulingIgnoredDuringExecution") or []:
            score += sign * item["weight"] * len(_peers(store, pod, item["podAffinityTerm"], node, nodes))
    for constraint in pod["spec"].get("topologySpreadConstraints") or []:
        domain = (node["metadata"].get("labels") or {}).get(constraint["topologyKey"])
        score -= _counts(store, pod, constraint, nodes).get(domain or "", 0)
    for taint in (node.get("spec") or {}).get("taints") or []:
        if taint["effect"] == "PreferNoSchedule" and not tolerates(pod["spec"].get("tolerations") or [], taint):
            score -= 5
    return score
