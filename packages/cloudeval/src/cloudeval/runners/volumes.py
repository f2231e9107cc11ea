"""Volumes and variables of a pod, made from its admitted manifest as Kubernetes' documentation describes them."""

from __future__ import annotations

import base64
import os
import re
import shutil
from pathlib import Path
from typing import Any

from cloudeval.errors import NotCoveredError
from cloudeval.runners import linux
from cloudeval.runners.containers import Mount
from cloudeval.runners.sandbox import SCRATCH
from cloudeval.schema import quantity
from cloudeval.store import Store

Object = dict[str, Any]


class NotYet(Exception):
    """Something that the pod needs does not exist yet; the kubelet tries again."""


def _object(store: Store, pod: Object, kind: str, name: str, optional: bool | None) -> Object | None:
    found = store.get(kind, name, pod["metadata"]["namespace"])
    if found is None and not optional:
        raise NotYet(f'{kind} "{name}" not found')
    return found


def contents(value: Object) -> dict[str, bytes]:
    """Return the entries of a ConfigMap or Secret."""
    if value["kind"] == "Secret":
        return {key: base64.b64decode(text or "") for key, text in (value.get("data") or {}).items()}
    plain = {key: text.encode() for key, text in (value.get("data") or {}).items()}
    return plain | {key: base64.b64decode(text) for key, text in (value.get("binaryData") or {}).items()}


def field_value(pod: Object, path: str) -> str:
    """Return what a fieldRef refers to, as the downward API formats it."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    if found := re.fullmatch(r"metadata\.(labels|annotations)\['([^']+)'\]", path):
        return str((metadata.get(found[1]) or {}).get(found[2], ""))
    if path in ("metadata.labels", "metadata.annotations"):
        entries = sorted((metadata.get(path.partition(".")[2]) or {}).items())
        return "\n".join(f'{key}="{_escaped(str(value))}"' for key, value in entries)
    return str(
        {
            "metadata.name": metadata["name"],
            "metadata.namespace": metadata["namespace"],
            "metadata.uid": metadata["uid"],
            "spec.nodeName": pod["spec"].get("nodeName"),
            "spec.serviceAccountName": pod["spec"].get("serviceAccountName", "default"),
            "status.podIP": status.get("podIP", ""),
            "status.podIPs": status.get("podIP", ""),
            "status.hostIP": status.get("hostIP", ""),
            "status.hostIPs": status.get("hostIP", ""),
        }[path]
    )


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def resource_value(container: Object, ref: Object) -> str:
    """Return what a resourceFieldRef refers to, divided and rounded up. Without a limit the node's capacity counts."""
    part, _, name = ref["resource"].partition(".")
    resources = container.get("resources") or {}
    amount = quantity(
        (resources.get(part) or {}).get(name, {"cpu": 4, "memory": 8 * 2**30}.get(name, 0) if part == "limits" else 0)
    )
    divisor = quantity(ref.get("divisor") or 1) or 1
    return str(-int(-amount // divisor))


def expand(text: str, env: dict[str, str]) -> str:
    """Replace $(NAME) by known variables; $$ is a literal dollar; unknown names stay."""

    def replace(found: re.Match[str]) -> str:
        return "$" if found[0] == "$$" else env.get(found[1], found[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", replace, text)


def environment(store: Store, pod: Object, container: Object, image_env: dict[str, str], path: str) -> dict[str, str]:
    """Return a container's variables: image, services, envFrom, then env in order with $(NAME) expanded."""
    env = {
        "PATH": path,
        "HOSTNAME": pod["spec"].get("hostname") or pod["metadata"]["name"],
        "HOME": "/root",
        **image_env,
    }
    own = dict(_service_variables(store, pod))
    for entry in container.get("envFrom") or []:
        kind = "ConfigMap" if entry.get("configMapRef") else "Secret"
        ref = entry.get("configMapRef") or entry["secretRef"]
        found = _object(store, pod, kind, ref["name"], ref.get("optional"))
        for key, data in (contents(found) if found else {}).items():
            own[(entry.get("prefix") or "") + key] = data.decode(errors="replace")
    for entry in container.get("env") or []:
        source = entry.get("valueFrom")
        value = expand(entry.get("value") or "", own) if source is None else _from_source(store, pod, container, source)
        if value is not None:
            own[entry["name"]] = value
    return env | own


def _from_source(store: Store, pod: Object, container: Object, source: Object) -> str | None:
    if ref := source.get("fieldRef"):
        return field_value(pod, ref["fieldPath"])
    if ref := source.get("resourceFieldRef"):
        others = {
            item["name"]: item for item in [*pod["spec"]["containers"], *(pod["spec"].get("initContainers") or [])]
        }
        return resource_value(others.get(ref.get("containerName"), container), ref)
    kind = "ConfigMap" if source.get("configMapKeyRef") else "Secret"
    ref = source.get("configMapKeyRef") or source.get("secretKeyRef") or {}
    found = _object(store, pod, kind, ref["name"], ref.get("optional"))
    entries = contents(found) if found else {}
    if ref["key"] not in entries:
        if ref.get("optional"):
            return None
        raise NotYet(f'key "{ref["key"]}" not found in {kind} "{ref["name"]}"')
    return entries[ref["key"]].decode(errors="replace")


def _service_variables(store: Store, pod: Object) -> list[tuple[str, str]]:
    variables: list[tuple[str, str]] = []
    for service in (
        store.list("Service", pod["metadata"]["namespace"]) if pod["spec"].get("enableServiceLinks", True) else []
    ):
        address = service["spec"].get("clusterIP")
        ports = service["spec"].get("ports") or []
        if address and address != "None" and ports:
            name = service["metadata"]["name"].upper().replace("-", "_")
            variables += [(f"{name}_SERVICE_HOST", address), (f"{name}_SERVICE_PORT", str(ports[0]["port"]))]
            variables += [
                (f"{name}_SERVICE_PORT_{port['name'].upper().replace('-', '_')}", str(port["port"]))
                for port in ports
                if port.get("name")
            ]
    return variables


class PodVolumes:
    """The volumes of one pod on the sandbox's scratch tmpfs."""

    def __init__(self, store: Store, pod: Object) -> None:
        self.store, self.pod = store, pod
        self.folder = SCRATCH / "pods" / pod["metadata"]["uid"]
        self.paths: dict[str, tuple[Path, bool]] = {}

    def make(self) -> None:
        """Make every volume. Raises NotYet while an object is missing."""
        for volume in self.pod["spec"].get("volumes") or []:
            if volume["name"] not in self.paths:
                self.paths[volume["name"]] = self._make(volume)

    def _make(self, volume: Object) -> tuple[Path, bool]:
        path = self.folder / volume["name"]
        if volume.get("emptyDir") is not None:
            path.mkdir(parents=True, exist_ok=True)
            limit = volume["emptyDir"].get("sizeLimit")
            if limit is not None and volume["emptyDir"].get("medium") == "Memory":
                linux.mount(
                    "tmpfs", path, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, f"size={int(quantity(limit))},mode=777"
                )
            path.chmod(0o777)
            self._group(path)
            return path, False
        if ref := volume.get("hostPath"):
            return self._host_path(ref), False
        if ref := volume.get("persistentVolumeClaim"):
            return self._claim(ref)
        files = self._files(volume)
        path.mkdir(parents=True, exist_ok=True)
        for name, (data, mode) in files.items():
            target = path / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            target.chmod(mode)
            self._group(target)
        return path, True

    def _group(self, path: Path) -> None:
        group = (self.pod["spec"].get("securityContext") or {}).get("fsGroup")
        if group is not None:
            os.chown(path, -1, group)
            mode = path.stat().st_mode & 0o7777
            path.chmod(mode | (0o2070 if path.is_dir() else (0o040 | (mode & 0o100) >> 3)))

    def _files(self, volume: Object) -> dict[str, tuple[bytes, int]]:
        if ref := volume.get("configMap"):
            return self._entries("ConfigMap", ref["name"], ref, ref.get("defaultMode", 0o644))
        if ref := volume.get("secret"):
            return self._entries("Secret", ref["secretName"], ref, ref.get("defaultMode", 0o644))
        if ref := volume.get("downwardAPI"):
            return self._downward(ref, ref.get("defaultMode", 0o644))
        if ref := volume.get("projected"):
            files: dict[str, tuple[bytes, int]] = {}
            mode = ref.get("defaultMode", 0o644)
            for source in ref.get("sources") or []:
                for kind, key in (("ConfigMap", "configMap"), ("Secret", "secret")):
                    if source.get(key):
                        files |= self._entries(kind, source[key]["name"], source[key], mode)
                if source.get("downwardAPI"):
                    files |= self._downward(source["downwardAPI"], mode)
                if source.get("serviceAccountToken"):
                    files[source["serviceAccountToken"]["path"]] = (b"token-of-a-simulated-cluster", mode)
            return files
        kinds = ", ".join(key for key in volume if key != "name")
        raise NotCoveredError(f"no runner here has volumes of the kind {kinds}")

    def _entries(self, kind: str, name: str, ref: Object, default_mode: int) -> dict[str, tuple[bytes, int]]:
        found = _object(self.store, self.pod, kind, name, ref.get("optional"))
        entries = contents(found) if found else {}
        if not ref.get("items"):
            return {key: (data, default_mode) for key, data in entries.items()}
        files = {}
        for item in ref["items"]:
            if item["key"] in entries:
                files[item["path"]] = (entries[item["key"]], item.get("mode", default_mode))
            elif not ref.get("optional"):
                raise NotYet(f'references non-existent key "{item["key"]}" of {kind} "{name}"')
        return files

    def _downward(self, ref: Object, default_mode: int) -> dict[str, tuple[bytes, int]]:
        containers = {c["name"]: c for c in self.pod["spec"]["containers"]}
        return {
            item["path"]: (
                (
                    field_value(self.pod, item["fieldRef"]["fieldPath"])
                    if item.get("fieldRef")
                    else resource_value(containers[item["resourceFieldRef"]["containerName"]], item["resourceFieldRef"])
                ).encode(),
                item.get("mode", default_mode),
            )
            for item in ref.get("items") or []
        }

    def _host_path(self, ref: Object) -> Path:
        """Return a path of the simulated node; the machine's own files are never mounted."""
        path = SCRATCH / "nodes" / str(self.pod["spec"]["nodeName"]) / str(ref["path"]).lstrip("/")
        kind = ref.get("type") or ""
        if kind in ("", "DirectoryOrCreate"):
            path.mkdir(parents=True, exist_ok=True)
        elif kind == "FileOrCreate":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        elif not (path.is_dir() if kind == "Directory" else path.is_file()):
            raise NotYet(f"hostPath type check failed: {ref['path']} is not a {kind}")
        return path

    def _claim(self, ref: Object) -> tuple[Path, bool]:
        claim = _object(self.store, self.pod, "PersistentVolumeClaim", ref["claimName"], None)
        if claim is None or (claim.get("status") or {}).get("phase") != "Bound":
            raise NotYet(f"the claim {ref['claimName']} is not bound")
        path = SCRATCH / "volumes" / str(claim["spec"]["volumeName"])
        if not path.exists():
            path.mkdir(parents=True)
            path.chmod(0o777)
        self._group(path)
        return path, bool(ref.get("readOnly"))

    def mounts(self, container: Object, env: dict[str, str]) -> list[Mount]:
        """Return the mounts of a container, with subPath and read-only applied."""
        result = []
        for item in container.get("volumeMounts") or []:
            source, read_only = self.paths[item["name"]]
            sub_path = item.get("subPath") or expand(item.get("subPathExpr") or "", env)
            if sub_path:
                base, source = source, source / sub_path
                if not source.resolve().is_relative_to(base.resolve()):
                    raise NotYet(f"subPath {sub_path} leads out of the volume")
                if not source.exists():
                    source.mkdir(parents=True)
            result.append(Mount(source, item["mountPath"], read_only or bool(item.get("readOnly"))))
        return result

    def remove(self) -> None:
        """Remove volumes that live as long as the pod."""
        shutil.rmtree(self.folder, ignore_errors=True)
