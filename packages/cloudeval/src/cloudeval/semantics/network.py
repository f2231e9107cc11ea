"""NetworkPolicy: may one pod connect to another, or to an address outside?"""

from __future__ import annotations

import ipaddress
from typing import Any

from cloudeval.store import Store
from cloudeval.values import matches

Object = dict[str, Any]


def connects(store: Store, source: Object | str, target: Object | str, port: int, protocol: str = "TCP") -> bool:
    """Return True if policies let the source connect to the target.

    Args:
        store: Policies and namespaces.
        source: A pod (an object with metadata and spec), or an IP address outside of the cluster.
        target: The same.
        port: The target's port.
        protocol: TCP, UDP or SCTP.
    """
    leaves = not isinstance(source, dict) or _direction(
        store, source, "Egress", "egress", "to", target, target, port, protocol
    )
    enters = not isinstance(target, dict) or _direction(
        store, target, "Ingress", "ingress", "from", source, target, port, protocol
    )
    return leaves and enters


def _direction(
    store: Store,
    pod: Object,
    kind: str,
    field: str,
    peers_key: str,
    other: Object | str,
    target: Object | str,
    port: int,
    protocol: str,
) -> bool:
    namespace = pod["metadata"].get("namespace", "default")
    policies = [
        policy
        for policy in store.list("NetworkPolicy", namespace)
        if kind in policy["spec"]["policyTypes"]
        and matches(policy["spec"]["podSelector"], pod["metadata"].get("labels"))
    ]
    if not policies:
        return True
    return any(
        _allows(store, rule or {}, peers_key, other, target, port, protocol, namespace)
        for policy in policies
        for rule in policy["spec"].get(field) or []
    )


def _allows(
    store: Store,
    rule: Object,
    peers_key: str,
    other: Object | str,
    target: Object | str,
    port: int,
    protocol: str,
    namespace: str,
) -> bool:
    peers, ports = rule.get(peers_key), rule.get("ports")
    right_peer = not peers or any(_is_peer(store, peer, other, namespace) for peer in peers)
    return right_peer and (not ports or any(_is_port(item, target, port, protocol) for item in ports))


def _is_port(item: Object, target: Object | str, port: int, protocol: str) -> bool:
    if item.get("protocol", "TCP") != protocol:
        return False
    wanted = item.get("port")
    if wanted is None:
        return True
    if isinstance(wanted, str):
        named = (
            [
                p["containerPort"]
                for c in target["spec"]["containers"]
                for p in c.get("ports") or []
                if p.get("name") == wanted
            ]
            if isinstance(target, dict)
            else []
        )
        return port in named
    return bool(int(wanted) <= port <= int(item.get("endPort") or wanted))


def _is_peer(store: Store, peer: Object, other: Object | str, namespace: str) -> bool:
    if block := peer.get("ipBlock"):
        address = ipaddress.ip_address(
            other if isinstance(other, str) else (other.get("status") or {}).get("podIP", "0.0.0.0")
        )
        inside = address in ipaddress.ip_network(block["cidr"], strict=False)
        return inside and not any(
            address in ipaddress.ip_network(part, strict=False) for part in block.get("except") or []
        )
    if not isinstance(other, dict):
        return False
    other_namespace = other["metadata"].get("namespace", "default")
    if peer.get("namespaceSelector") is not None:
        found = store.get("Namespace", other_namespace)
        if not matches(peer["namespaceSelector"], ((found or {}).get("metadata") or {}).get("labels")):
            return False
    elif other_namespace != namespace:
        return False
    return peer.get("podSelector") is None or matches(peer["podSelector"], other["metadata"].get("labels"))
