"""The network of one sandbox: an address per pod on a bridge, service addresses, and names in /etc/hosts.

Pods reach each other and the node, nothing else: the sandbox has no way out. A Service's cluster address and node port are
served by a small TCP and UDP forwarder of the node, as kube-proxy's userspace mode did it.
"""

from __future__ import annotations

import contextlib
import itertools
import selectors
import socket
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

from cloudeval.runners.sandbox import SCRATCH, command
from cloudeval.store import Store

Object = dict[str, Any]

NODE_ADDRESS = "10.88.0.1"


class Network:
    """Pod addresses, service forwarders and host files."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.addresses: dict[str, str] = {}
        self._next = itertools.count(2)
        self._ready = False
        self._forwarders: dict[tuple[str, int, str], Forwarder] = {}
        self._files: dict[str, tuple[Path, Object]] = {}
        self._text = ""

    def _bridge(self) -> None:
        Path("/run/netns").mkdir(exist_ok=True)
        command(["mount", "-t", "tmpfs", "tmpfs", "/run/netns"])
        command(
            ["ip", "-batch", "-"],
            text=f"link add br0 type bridge forward_delay 0\naddr add {NODE_ADDRESS}/16 dev br0\nlink set br0 up\n"
            "addr add 10.96.0.1/16 dev lo\n",
        )
        for name, value in (
            ("net.ipv4.ip_forward", "0"),
            ("net.ipv4.ip_nonlocal_bind", "1"),
            ("net.ipv4.ip_unprivileged_port_start", "0"),
        ):
            with contextlib.suppress(OSError):
                Path("/proc/sys", name.replace(".", "/")).write_text(value)
        self._ready = True

    @staticmethod
    def namespace(uid: str) -> str:
        """Return the name of a pod's network namespace."""
        return f"p{uid[:8]}"

    def add_pod(self, uid: str, spec: Object) -> str:
        """Give a pod a network of its own and return its address."""
        if not self._ready:
            self._bridge()
        if spec.get("hostNetwork"):
            return NODE_ADDRESS
        number = next(self._next)
        address, name = f"10.88.{number // 250}.{number % 250 + 2}", self.namespace(uid)
        command(
            ["ip", "-batch", "-"],
            text=f"netns add {name}\nlink add v{number} type veth peer name eth0 netns {name}\nlink set v{number} master br0 up\n",
        )
        command(
            ["ip", "-n", name, "-batch", "-"],
            text=f"link set lo up\naddr add {address}/16 dev eth0\nlink set eth0 up\nroute add default via {NODE_ADDRESS}\n",
        )
        for port in (
            port for container in spec["containers"] for port in container.get("ports") or [] if port.get("hostPort")
        ):
            self._forward(
                port.get("hostIP") or NODE_ADDRESS,
                port["hostPort"],
                port.get("protocol", "TCP"),
                [(address, port["containerPort"])],
                False,
            )
        self.addresses[uid] = address
        return address

    def remove_pod(self, uid: str) -> None:
        """Remove a pod's network and its host ports."""
        address = self.addresses.pop(uid, None)
        if address:
            for key in [
                key
                for key, forwarder in self._forwarders.items()
                if any(target[0] == address for target in forwarder.targets) and key[0] == NODE_ADDRESS
            ]:
                self._forwarders.pop(key).close()
            with contextlib.suppress(Exception):
                command(["ip", "netns", "delete", self.namespace(uid)])
        self._files.pop(uid, None)

    def update(self) -> None:
        """Bring forwarders and host files to the store's services."""
        wanted: dict[tuple[str, int, str], tuple[list[tuple[str, int]], bool]] = {}
        for service in self.store.list("Service"):
            spec = service["spec"]
            address = spec.get("clusterIP")
            sticky = spec.get("sessionAffinity") == "ClientIP"
            for port in spec.get("ports") or []:
                targets = [
                    (entry["ip"], entry["ports"][port.get("name", "")])
                    for entry in service.get("endpoints") or []
                    if port.get("name", "") in entry["ports"]
                ]
                protocol = port.get("protocol", "TCP")
                if address and address != "None":
                    wanted[(address, port["port"], protocol)] = (targets, sticky)
                if port.get("nodePort"):
                    wanted[(NODE_ADDRESS, port["nodePort"], protocol)] = (targets, sticky)
        if wanted and not self._ready:
            self._bridge()
        for key, (targets, sticky) in wanted.items():
            self._forward(*key, targets, sticky)
        for key in [key for key in self._forwarders if key[0].startswith("10.96.") and key not in wanted]:
            self._forwarders.pop(key).close()
        self._write_hosts()

    def _forward(self, address: str, port: int, protocol: str, targets: list[tuple[str, int]], sticky: bool) -> None:
        key = (address, port, protocol)
        if key not in self._forwarders:
            with contextlib.suppress(OSError):
                self._forwarders[key] = Forwarder(address, port, protocol, targets, sticky)
        elif self._forwarders[key].targets != targets:
            self._forwarders[key].targets = targets

    def hosts_file(self, pod: Object) -> Path:
        """Return the /etc/hosts of a pod; it follows the services."""
        path = SCRATCH / "files" / str(pod["metadata"]["uid"]) / "hosts"
        self._files[pod["metadata"]["uid"]] = (path, pod)
        self._text = ""
        self._write_hosts()
        return path

    def _write_hosts(self) -> None:
        text = repr(
            [
                (
                    service["metadata"],
                    service["spec"].get("clusterIP"),
                    service.get("endpoints"),
                    service["spec"].get("externalName"),
                )
                for service in self.store.list("Service")
            ]
        )
        if text == self._text:
            return
        self._text = text
        by_address = self._names()
        for path, pod in self._files.values():
            namespace = pod["metadata"]["namespace"]
            own = pod["spec"].get("hostname") or pod["metadata"]["name"]
            lines = ["127.0.0.1 localhost", f"{(pod.get('status') or {}).get('podIP')} {own}"]
            lines += [
                f"{alias['ip']} {' '.join(alias.get('hostnames') or [])}"
                for alias in pod["spec"].get("hostAliases") or []
            ]
            for address, names in by_address.items():
                local = [
                    name.removesuffix(f".{namespace}.svc.cluster.local")
                    for name in names
                    if name.endswith(f".{namespace}.svc.cluster.local")
                ]
                short = [name.removesuffix(".svc.cluster.local") for name in names]
                lines += [
                    f"{address} {name}"
                    for name in dict.fromkeys([*names, *local, *short, *(f"{name}.svc" for name in short)])
                ]
            with path.open("w") as file:  # in place: the file is a mount
                file.write("\n".join(lines) + "\n")

    def _names(self) -> dict[str, list[str]]:
        names: dict[str, list[str]] = defaultdict(list)
        for service in self.store.list("Service"):
            full = f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc.cluster.local"
            address = service["spec"].get("clusterIP")
            if address and address != "None":
                names[address].append(full)
            for entry in service.get("endpoints") or []:
                if address == "None":
                    names[entry["ip"]].append(full)
                if entry["hostname"]:
                    names[entry["ip"]].append(f"{entry['hostname']}.{full}")
            if service["spec"]["type"] == "ExternalName":
                target = service["spec"]["externalName"].rstrip(".")
                for known, entries in list(names.items()):
                    if target in entries:
                        names[known].append(full)
        return names


class Forwarder:
    """Forwards one address and port to its targets in turn; `sticky` keeps a client at one target."""

    def __init__(self, address: str, port: int, protocol: str, targets: list[tuple[str, int]], sticky: bool) -> None:
        self.targets, self.sticky = targets, sticky
        self._turn = itertools.count()
        kind = socket.SOCK_DGRAM if protocol == "UDP" else socket.SOCK_STREAM
        self._socket = socket.socket(socket.AF_INET, kind)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((address, port))
        if kind == socket.SOCK_STREAM:
            self._socket.listen(64)
        threading.Thread(target=self._accept if kind == socket.SOCK_STREAM else self._datagrams, daemon=True).start()

    def _target(self, client: str) -> tuple[str, int] | None:
        targets = self.targets
        if not targets:
            return None
        return targets[(hash(client) if self.sticky else next(self._turn)) % len(targets)]

    def _accept(self) -> None:
        while True:
            try:
                client, peer = self._socket.accept()
            except OSError:
                return
            target = self._target(peer[0])
            if target is None:
                client.close()
            else:
                threading.Thread(target=_pipe, args=(client, target), daemon=True).start()

    def _datagrams(self) -> None:
        while True:
            try:
                data, peer = self._socket.recvfrom(65536)
                target = self._target(peer[0])
                if target is None:
                    continue
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as upstream:
                    upstream.settimeout(1)
                    upstream.sendto(data, target)
                    with contextlib.suppress(TimeoutError):
                        self._socket.sendto(upstream.recv(65536), peer)
            except OSError:
                if self._socket.fileno() < 0:
                    return

    def close(self) -> None:
        """Stop accepting."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _pipe(client: socket.socket, target: tuple[str, int]) -> None:
    try:
        server = socket.create_connection(target, 2)
    except OSError:
        client.close()
        return
    with client, server, selectors.DefaultSelector() as selector:
        selector.register(client, selectors.EVENT_READ, server)
        selector.register(server, selectors.EVENT_READ, client)
        while selector.get_map():
            for key, _ in selector.select(30):
                source, sink = key.fileobj, key.data
                assert isinstance(source, socket.socket)
                try:
                    data = source.recv(65536)
                    if data:
                        sink.sendall(data)
                        continue
                    sink.shutdown(socket.SHUT_WR)
                except OSError:
                    return
                selector.unregister(source)
