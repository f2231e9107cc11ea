"""NetworkPolicy: may one pod connect to another, or to an address outside?"""

import ipaddress
from dataclasses import dataclass

from cloudeval.store import Store
from cloudeval.values import Object, dig, matches


@dataclass(frozen=True)
class Connection:
    """A connection between pods (objects with metadata and spec) or IP addresses outside of the cluster.

    Args:
        port: The target's port.
        protocol: TCP, UDP or SCTP.
    """

    store: Store
    source: Object | str
    target: Object | str
    port: int
    protocol: str = "TCP"

    def is_allowed(self) -> bool:
        """Return True if policies let the source connect to the target."""
        leaves = self._passes(self.source, "Egress", "to", self.target)
        return leaves and self._passes(self.target, "Ingress", "from", self.source)

    def _passes(self, pod: Object | str, kind: str, peers_key: str, other: Object | str) -> bool:
        if not isinstance(pod, dict):
            return True
        namespace, labels = pod["metadata"].get("namespace", "default"), pod["metadata"].get("labels")
        policies = [policy["spec"] for policy in self.store.list("NetworkPolicy", namespace)]
        chosen = [spec for spec in policies if kind in spec["policyTypes"] and matches(spec["podSelector"], labels)]
        rules = [rule or {} for spec in chosen for rule in spec.get(kind.lower()) or []]
        return not chosen or any(
            (not rule.get(peers_key) or any(self._is_peer(peer, other, namespace) for peer in rule[peers_key]))
            and (not rule.get("ports") or any(map(self._is_port, rule["ports"])))
            for rule in rules
        )

    def _is_port(self, item: Object) -> bool:
        if item.get("protocol", "TCP") != self.protocol:
            return False
        wanted = item.get("port")
        if isinstance(wanted, str):
            containers = self.target["spec"]["containers"] if isinstance(self.target, dict) else []
            ports = [port for container in containers for port in container.get("ports") or []]
            return self.port in [port["containerPort"] for port in ports if port.get("name") == wanted]
        return wanted is None or bool(int(wanted) <= self.port <= int(item.get("endPort") or wanted))

    def _is_peer(self, peer: Object, other: Object | str, namespace: str) -> bool:
        if block := peer.get("ipBlock"):
            address = ipaddress.ip_address(other if isinstance(other, str) else dig(other, "status.podIP", "0.0.0.0"))
            parts = (block["cidr"], *(block.get("except") or []))
            blocks = [ipaddress.ip_network(part, strict=False) for part in parts]
            return address in blocks[0] and not any(address in part for part in blocks[1:])
        if not isinstance(other, dict):
            return False
        place = other["metadata"].get("namespace", "default")
        if peer.get("namespaceSelector") is not None:
            labels = dig(self.store.get("Namespace", place), "metadata.labels")
            right_place = matches(peer["namespaceSelector"], labels)
        else:
            right_place = place == namespace
        selector = peer.get("podSelector")
        return right_place and (selector is None or matches(selector, other["metadata"].get("labels")))
