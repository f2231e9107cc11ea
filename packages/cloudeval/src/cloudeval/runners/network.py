"""The network of one sandbox: an address per pod on a bridge, service addresses, and names in /etc/hosts.

Pods reach each other and the node, nothing else: the sandbox has no way out. A Service's cluster address and node port are
served by a small TCP and UDP forwarder of the node, as kube-proxy's userspace mode did it.
"""

import contextlib
import itertools
import selectors
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from cloudeval.runners import linux
from cloudeval.runners.sandbox import SCRATCH, command
from cloudeval.store import Store
from cloudeval.values import Object, dig

NODE_ADDRESS = "10.88.0.1"
_ZONE = ".svc.cluster.local"
_SETTINGS = {"ipv4/ip_forward": "0", "ipv4/ip_nonlocal_bind": "1", "ipv4/ip_unprivileged_port_start": "0"}
Target = tuple[str, int]
#: Address, port and protocol that a forwarder listens on.
Listened = tuple[str, int, str]


class Network:
    """Pod addresses, service forwarders and host files."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.addresses: dict[str, str] = {}
        self._next = itertools.count(2)
        self._ready = False
        self._forwarders: dict[Listened, Forwarder] = {}
        self._files: dict[str, tuple[Path, Object]] = {}
        self._written = ""

    def _bridge(self) -> None:
        if self._ready:
            return
        Path("/run/netns").mkdir(exist_ok=True)
        linux.mount("tmpfs", "/run/netns", "tmpfs")
        links = f"link add br0 type bridge forward_delay 0\naddr add {NODE_ADDRESS}/16 dev br0\nlink set br0 up\n"
        command(["ip", "-batch", "-"], text=links + "addr add 10.96.0.1/16 dev lo\n")
        for name, value in _SETTINGS.items():
            with contextlib.suppress(OSError):
                Path("/proc/sys/net", name).write_text(value)
        self._ready = True

    @staticmethod
    def namespace(uid: str) -> str:
        """Return the name of a pod's network namespace."""
        return f"p{uid[:8]}"

    def add_pod(self, uid: str, spec: Object) -> str:
        """Give a pod a network of its own and return its address."""
        self._bridge()
        if spec.get("hostNetwork"):
            return NODE_ADDRESS
        number = next(self._next)
        address, name = f"10.88.{number // 250}.{number % 250 + 2}", self.namespace(uid)
        outside = f"netns add {name}\nlink add v{number} type veth peer name eth0 netns {name}\n"
        inside = f"link set lo up\naddr add {address}/16 dev eth0\nlink set eth0 up\n"
        command(["ip", "-batch", "-"], text=f"{outside}link set v{number} master br0 up\n")
        command(["ip", "-n", name, "-batch", "-"], text=f"{inside}route add default via {NODE_ADDRESS}\n")
        for port in [port for container in spec["containers"] for port in container.get("ports") or []]:
            if port.get("hostPort"):
                key = (port.get("hostIP") or NODE_ADDRESS, port["hostPort"], port.get("protocol", "TCP"))
                self._forward(key, [(address, port["containerPort"])], False)
        self.addresses[uid] = address
        return address

    def remove_pod(self, uid: str) -> None:
        """Remove a pod's network and its host ports."""
        self._files.pop(uid, None)
        if address := self.addresses.pop(uid, None):
            for key, forwarder in list(self._forwarders.items()):
                if key[0] == NODE_ADDRESS and any(target[0] == address for target in forwarder.targets):
                    self._forwarders.pop(key).close()
            with contextlib.suppress(Exception):
                command(["ip", "netns", "delete", self.namespace(uid)])

    def update(self) -> None:
        """Bring forwarders and host files to the store's services."""
        wanted: dict[Listened, tuple[list[Target], bool]] = {}
        for service in self.store.list("Service"):
            spec, endpoints = service["spec"], service.get("endpoints") or []
            for port in spec.get("ports") or []:
                name = port.get("name", "")
                targets = [(entry["ip"], entry["ports"][name]) for entry in endpoints if name in entry["ports"]]
                addresses = {spec.get("clusterIP"): port["port"], NODE_ADDRESS: port.get("nodePort")}
                for address, number in addresses.items():
                    if address not in (None, "", "None") and number:
                        key = (str(address), number, port.get("protocol", "TCP"))
                        wanted[key] = (targets, spec.get("sessionAffinity") == "ClientIP")
        for key, (targets, sticky) in wanted.items():
            self._bridge()
            self._forward(key, targets, sticky)
        for key in [key for key in self._forwarders if key[0].startswith("10.96.") and key not in wanted]:
            self._forwarders.pop(key).close()
        self._write_hosts()

    def _forward(self, key: Listened, targets: list[Target], sticky: bool) -> None:
        if key in self._forwarders:
            self._forwarders[key].targets = targets
        else:
            with contextlib.suppress(OSError):
                self._forwarders[key] = Forwarder(*key, targets, sticky)

    def hosts_file(self, pod: Object) -> Path:
        """Return the /etc/hosts of a pod; it follows the services."""
        uid = str(pod["metadata"]["uid"])
        self._files[uid] = (SCRATCH / "files" / uid / "hosts", pod)
        self._written = ""
        self._write_hosts()
        return self._files[uid][0]

    def _write_hosts(self) -> None:
        by_address = self._names()
        if (text := repr(by_address)) == self._written:
            return
        self._written = text
        for path, pod in self._files.values():
            own = pod["spec"].get("hostname") or pod["metadata"]["name"]
            lines = ["127.0.0.1 localhost", f"{dig(pod, 'status.podIP')} {own}"]
            aliases = pod["spec"].get("hostAliases") or []
            lines += [f"{alias['ip']} {' '.join(alias.get('hostnames') or [])}" for alias in aliases]
            local = f".{pod['metadata']['namespace']}{_ZONE}"
            for address, names in by_address.items():
                short = [name.removesuffix(_ZONE) for name in names]
                near = [name.removesuffix(local) for name in names if name.endswith(local)]
                every = dict.fromkeys([*names, *near, *short, *(f"{name}.svc" for name in short)])
                lines += [f"{address} {name}" for name in every]
            with path.open("w") as file:  # in place: the file is a mount
                file.write("\n".join(lines) + "\n")

    def _names(self) -> dict[str, list[str]]:
        """Return the full names of each address."""
        names: dict[str, list[str]] = defaultdict(list)
        for service in self.store.list("Service"):
            full = f"{service['metadata']['name']}.{service['metadata']['namespace']}{_ZONE}"
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
                for entries in [entries for entries in names.values() if target in entries]:
                    entries.append(full)
        return names


class Forwarder:
    """Forwards one address and port to its targets in turn; `sticky` keeps a client at one target."""

    def __init__(self, address: str, port: int, protocol: str, targets: list[Target], sticky: bool) -> None:
        self.targets, self.sticky = targets, sticky
        self._turn = itertools.count()
        datagrams = protocol == "UDP"
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM if datagrams else socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((address, port))
        if not datagrams:
            self._socket.listen(64)
        serve_one = self._datagram if datagrams else self._connection
        threading.Thread(target=self._serve, args=(serve_one,), daemon=True).start()

    def _serve(self, serve_one: Callable[[], None]) -> None:
        while self._socket.fileno() >= 0:
            try:
                serve_one()
            except OSError:  # closed, or too many files are open
                time.sleep(0.01)

    def _target(self, client: str) -> Target | None:
        targets = self.targets
        return targets[(hash(client) if self.sticky else next(self._turn)) % len(targets)] if targets else None

    def _connection(self) -> None:
        client, peer = self._socket.accept()
        if (target := self._target(peer[0])) is None:
            client.close()
        else:
            threading.Thread(target=_pipe, args=(client, target), daemon=True).start()

    def _datagram(self) -> None:
        data, peer = self._socket.recvfrom(65536)
        if target := self._target(peer[0]):
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as upstream:
                upstream.settimeout(1)
                upstream.sendto(data, target)
                self._socket.sendto(upstream.recv(65536), peer)

    def close(self) -> None:
        """Stop accepting."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _pipe(client: socket.socket, target: Target) -> None:
    with (
        contextlib.suppress(OSError),
        client,
        socket.create_connection(target, 2) as server,
        selectors.DefaultSelector() as selector,
    ):
        selector.register(client, selectors.EVENT_READ, server)
        selector.register(server, selectors.EVENT_READ, client)
        while selector.get_map():
            for key, _ in selector.select(30):
                source, sink = key.fileobj, key.data
                assert isinstance(source, socket.socket)
                if data := source.recv(65536):
                    sink.sendall(data)
                else:
                    sink.shutdown(socket.SHUT_WR)
                    selector.unregister(source)
