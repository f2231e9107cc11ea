"""A small scheduler: places pods on nodes by selectors, affinity, taints, free resources and spread."""

from collections import Counter

from cloudeval.schema import quantity
from cloudeval.store import Objects, Store, is_active
from cloudeval.values import Object, dig, expression_holds, matches

_IGNORED = "DuringSchedulingIgnoredDuringExecution"
_REQUIRED, _PREFERRED = f"required{_IGNORED}", f"preferred{_IGNORED}"


def _labels(value: Object) -> Object:
    return value["metadata"].get("labels") or {}


def _tolerates(spec: Object, taint: Object) -> bool:
    for item in spec.get("tolerations") or []:
        if all(item.get(key) in (None, "", taint[key]) for key in ("effect", "key")):
            if item.get("operator") == "Exists" or (item.get("value") or "") == (taint.get("value") or ""):
                return True
    return False


def _selects_node(spec: Object, node: Object) -> bool:
    """Return True if nodeSelector and required node affinity admit the node."""
    required = dig(spec, f"affinity.nodeAffinity.{_REQUIRED}")
    return matches({"matchLabels": spec.get("nodeSelector")}, _labels(node)) and (
        required is None or any(_term_holds(term, node) for term in required["nodeSelectorTerms"])
    )


def _term_holds(term: Object, node: Object) -> bool:
    expressions, fields = term.get("matchExpressions") or [], term.get("matchFields") or []
    name = {"metadata.name": node["metadata"]["name"]}
    asked = [(item, _labels(node)) for item in expressions] + [(item, name) for item in fields]
    return bool(asked) and all(expression_holds(*pair) for pair in asked)


def fits_node(spec: Object, node: Object) -> bool:
    """Return True if the pod may run on the node: selector, affinity, taints."""
    taints = [taint for taint in dig(node, "spec.taints", []) if taint["effect"] in ("NoSchedule", "NoExecute")]
    return _selects_node(spec, node) and all(_tolerates(spec, taint) for taint in taints)


def _requests(spec: Object, resource: str) -> float:
    """Return what the pod asks for: the sum of its containers, or its largest init container if that is more."""

    def of(container: Object) -> float:
        return quantity((dig(container, "resources.requests") or {}).get(resource, 0))

    return max(sum(map(of, spec["containers"])), *map(of, spec.get("initContainers") or []), 0.0)


def _host_ports(spec: Object) -> set[int]:
    ports = [port for container in spec["containers"] for port in container.get("ports") or []]
    return {port["hostPort"] for port in ports if port.get("hostPort")}


def schedule(store: Store) -> None:
    """Bind every waiting pod that fits to the best node; others keep a PodScheduled condition with the reason."""
    nodes = store.list("Node")
    waiting = [pod for pod in store.list("Pod") if not pod["spec"].get("nodeName") and is_active(pod)]
    for pod in sorted(waiting, key=lambda pod: -pod["spec"].get("priority", 0)):
        if pod["spec"].get("schedulingGates"):
            continue
        placing = _Placing(store, pod, nodes)
        refused = [placing.refuse(node) for node in nodes]
        fitting = [node for node, reason in zip(nodes, refused, strict=True) if reason is None]
        if fitting:
            pod["spec"]["nodeName"] = max(fitting, key=placing.score)["metadata"]["name"]
            continue
        message = ", ".join(f"{count} {reason}" for reason, count in Counter(refused).items())
        unplaced = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        unplaced["message"] = f"0/{len(nodes)} nodes are available: {message}"
        pod.setdefault("status", {"phase": "Pending"})["conditions"] = [unplaced]


class _Placing:
    """The placing of one pod."""

    def __init__(self, store: Store, pod: Object, nodes: Objects) -> None:
        self.pod, self.spec, self.nodes = pod, pod["spec"], nodes
        self.namespace = pod["metadata"].get("namespace", "default")
        self.on: dict[str, Objects] = {node["metadata"]["name"]: [] for node in nodes}
        for other in store.list("Pod"):
            if is_active(other) and other["spec"].get("nodeName") in self.on:
                self.on[other["spec"]["nodeName"]].append(other)

    def _on(self, node: Object) -> Objects:
        return self.on[node["metadata"]["name"]]

    def refuse(self, node: Object) -> str | None:
        """Return why the pod cannot run on the node, or None."""
        spec, others = self.spec, self._on(node)
        if not _selects_node(spec, node):
            return "did not match the pod's node affinity/selector"
        if not fits_node(spec, node) or dig(node, "spec.unschedulable"):
            return "had a taint that the pod does not tolerate"
        for name in sorted({name for item in spec["containers"] for name in dig(item, "resources.requests", {})}):
            wanted = sum(_requests(other["spec"], name) for other in others) + _requests(spec, name)
            if wanted > quantity(dig(node, "status.allocatable", {}).get(name, 0)):
                return f"had too little {name}"
        if any(_host_ports(spec) & _host_ports(other["spec"]) for other in others):
            return "had no free host port"
        for term in dig(spec, f"affinity.podAntiAffinity.{_REQUIRED}", []):
            if self._peers(term, node):
                return "did not match the pod's anti-affinity rules"
        for term in dig(spec, f"affinity.podAffinity.{_REQUIRED}", []):
            first = self._selects_itself(term) and not any(self._peers(term, other) for other in self.nodes)
            if not self._peers(term, node) and not first:
                return "did not match the pod's affinity rules"
        return self._skewed(node)

    def _selects_itself(self, term: Object) -> bool:
        return matches(term.get("labelSelector"), self.pod["metadata"].get("labels"))

    def _peers(self, term: Object, node: Object) -> int:
        """Return how many pods that the term selects run in the node's domain."""
        key, namespaces = term["topologyKey"], term.get("namespaces") or [self.namespace]
        domain = _labels(node).get(key)
        same = [other for other in self.nodes if domain is not None and _labels(other).get(key) == domain]
        return sum(
            other is not self.pod
            and other["metadata"].get("namespace", "default") in namespaces
            and matches(term.get("labelSelector"), _labels(other))
            for place in same
            for other in self._on(place)
        )

    def _counts(self, constraint: Object) -> Counter[str]:
        counts: Counter[str] = Counter()
        for node in self.nodes:
            domain = _labels(node).get(constraint["topologyKey"])
            if domain is not None and fits_node(self.spec, node):
                counts[domain] += sum(matches(constraint.get("labelSelector"), _labels(pod)) for pod in self._on(node))
        return counts

    def _skewed(self, node: Object) -> str | None:
        for constraint in self.spec.get("topologySpreadConstraints") or []:
            if constraint["whenUnsatisfiable"] != "DoNotSchedule":
                continue
            domain, counts = _labels(node).get(constraint["topologyKey"], ""), self._counts(constraint)
            if domain not in counts:
                return "lacked the topology key of a spread constraint"
            if counts[domain] + self._selects_itself(constraint) - min(counts.values()) > constraint["maxSkew"]:
                return "did not match the pod's topology spread constraints"
        return None

    def score(self, node: Object) -> float:
        """Return how well the pod fits on the node; the highest wins."""
        score = -0.01 * len(self._on(node))
        for item in dig(self.spec, f"affinity.nodeAffinity.{_PREFERRED}", []):
            score += item["weight"] * _term_holds(item["preference"], node)
        for kind, sign in (("podAffinity", 1), ("podAntiAffinity", -1)):
            for item in dig(self.spec, f"affinity.{kind}.{_PREFERRED}", []):
                score += sign * item["weight"] * self._peers(item["podAffinityTerm"], node)
        for constraint in self.spec.get("topologySpreadConstraints") or []:
            score -= self._counts(constraint)[_labels(node).get(constraint["topologyKey"], "")]
        taints = [taint for taint in dig(node, "spec.taints", []) if taint["effect"] == "PreferNoSchedule"]
        return score - 5 * sum(not _tolerates(self.spec, taint) for taint in taints)
