"""NetworkPolicy: may one pod connect to another, or to an address outside?"""

import ipaddress

from cloudeval.store import Store
from cloudeval.values import Object, dig, matches


def connects(store: Store, source: Object | str, target: Object | str, port: int, protocol: str = "TCP") -> bool:
    """Return True if policies let the source connect to the target.

    Args:
        store: The objects.
        source: A pod (an object with metadata and spec), or an IP address outside of the cluster.
        target: Likewise.
        port: The target's port.
        protocol: TCP, UDP or SCTP.
    """

    def is_port(item: Object) -> bool:
        if item.get("protocol", "TCP") != protocol:
            return False
        wanted = item.get("port")
        if isinstance(wanted, str):
            containers = target["spec"]["containers"] if isinstance(target, dict) else []
            ports = [port for container in containers for port in container.get("ports") or []]
            return port in [item["containerPort"] for item in ports if item.get("name") == wanted]
        return wanted is None or bool(int(wanted) <= port <= int(item.get("endPort") or wanted))

    def passes(pod: Object | str, kind: str, peers_key: str, other: Object | str) -> bool:
        if not isinstance(pod, dict):
            return True
        namespace, labels = pod["metadata"].get("namespace", "default"), pod["metadata"].get("labels")
        policies = [policy["spec"] for policy in store.list("NetworkPolicy", namespace)]
        chosen = [spec for spec in policies if kind in spec["policyTypes"] and matches(spec["podSelector"], labels)]
        rules = [rule or {} for spec in chosen for rule in spec.get(kind.lower()) or []]
        return not chosen or any(
            (not rule.get(peers_key) or any(_is_peer(store, peer, other, namespace) for peer in rule[peers_key]))
            and (not rule.get("ports") or any(map(is_port, rule["ports"])))
            for rule in rules
        )

    return passes(source, "Egress", "to", target) and passes(target, "Ingress", "from", source)


def _is_peer(store: Store, peer: Object, other: Object | str, namespace: str) -> bool:
    if block := peer.get("ipBlock"):
        address = ipaddress.ip_address(other if isinstance(other, str) else dig(other, "status.podIP", "0.0.0.0"))
        blocks = [ipaddress.ip_network(part, strict=False) for part in (block["cidr"], *(block.get("except") or []))]
        return address in blocks[0] and not any(address in part for part in blocks[1:])
    if not isinstance(other, dict):
        return False
    place, selector = other["metadata"].get("namespace", "default"), peer.get("podSelector")
    right_place = place == namespace
    if peer.get("namespaceSelector") is not None:
        labels = dig(store.get("Namespace", place), "metadata.labels")
        right_place = matches(peer["namespaceSelector"], labels)
    return right_place and (selector is None or matches(selector, other["metadata"].get("labels")))
