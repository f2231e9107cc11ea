"""Volumes and variables of a pod, made from its admitted manifest as Kubernetes' documentation describes them."""

import base64
import json
import os
import re
import shutil
from pathlib import Path

from cloudeval.errors import NotCoveredError
from cloudeval.runners import linux
from cloudeval.runners.containers import Mount
from cloudeval.runners.sandbox import SCRATCH
from cloudeval.schema import quantity
from cloudeval.store import Store, containers_of
from cloudeval.values import Object, dig

#: Keys of references in variables and volumes, and the kinds that they refer to.
_SOURCES = {"configMap": "ConfigMap", "secret": "Secret"}
Files = dict[str, tuple[bytes, int]]


class NotYet(Exception):
    """Something that the pod needs does not exist yet; the kubelet tries again."""


def _contents(store: Store, pod: Object, kind: str, ref: Object) -> dict[str, bytes]:
    """Return the entries of the ConfigMap or Secret that a reference names; none if it is missing and optional."""
    name = ref.get("name") or ref["secretName"]
    found = store.get(kind, name, pod["metadata"]["namespace"])
    if found is None and not ref.get("optional"):
        raise NotYet(f'{kind} "{name}" not found')
    encoded = dig(found, "data" if kind == "Secret" else "binaryData", {})
    plain = {} if kind == "Secret" else dig(found, "data", {})
    decoded = {key: base64.b64decode(text or "") for key, text in encoded.items()}
    return {key: text.encode() for key, text in plain.items()} | decoded


def _field_value(pod: Object, path: str) -> str:
    """Return the value of a fieldRef, as the downward API formats it."""
    if found := re.fullmatch(r"metadata\.(labels|annotations)\['([^']+)'\]", path):
        return str(dig(pod, f"metadata.{found[1]}", {}).get(found[2], ""))
    if path in ("metadata.labels", "metadata.annotations"):
        entries = sorted(dig(pod, path, {}).items())
        return "\n".join(f"{key}={json.dumps(str(value), ensure_ascii=False)}" for key, value in entries)
    return str(dig(pod, re.sub("IPs$", "IP", path), ""))


def _resource_value(pod: Object, container: Object, ref: Object) -> str:
    """Return the value of a resourceFieldRef, divided and rounded up. Without a limit the node's capacity counts."""
    part, _, name = ref["resource"].partition(".")
    named = [item for item in containers_of(pod["spec"]) if item["name"] == ref.get("containerName")]
    node = {"cpu": 4, "memory": 8 * 2**30}.get(name, 0) if part == "limits" else 0
    amount = quantity(dig(named[0] if named else container, f"resources.{part}", {}).get(name, node))
    return str(-int(-amount // (quantity(ref.get("divisor") or 1) or 1)))


def _reference_value(pod: Object, container: Object, source: Object) -> str:
    if source.get("fieldRef"):
        return _field_value(pod, source["fieldRef"]["fieldPath"])
    return _resource_value(pod, container, source["resourceFieldRef"])


def expand(text: str, env: dict[str, str]) -> str:
    """Replace $(NAME) by known variables; $$ is a literal dollar; unknown names stay."""

    def replace(found: re.Match[str]) -> str:
        return "$" if found[0] == "$$" else env.get(found[1], found[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", replace, text)


def environment(store: Store, pod: Object, container: Object, image_env: dict[str, str], path: str) -> dict[str, str]:
    """Return a container's variables: image, services, envFrom, then env in order with $(NAME) expanded."""
    host = pod["spec"].get("hostname") or pod["metadata"]["name"]
    own = _service_variables(store, pod)
    for entry in container.get("envFrom") or []:
        for key, kind in _SOURCES.items():
            if ref := entry.get(f"{key}Ref"):
                for name, data in _contents(store, pod, kind, ref).items():
                    own[(entry.get("prefix") or "") + name] = data.decode(errors="replace")
    for entry in container.get("env") or []:
        source = entry.get("valueFrom")
        value = expand(entry.get("value") or "", own) if source is None else _from_source(store, pod, container, source)
        if value is not None:
            own[entry["name"]] = value
    return {"PATH": path, "HOSTNAME": host, "HOME": "/root"} | image_env | own


def _from_source(store: Store, pod: Object, container: Object, source: Object) -> str | None:
    for key, kind in _SOURCES.items():
        if ref := source.get(f"{key}KeyRef"):
            entries = _contents(store, pod, kind, ref)
            if ref["key"] not in entries and not ref.get("optional"):
                raise NotYet(f'key "{ref["key"]}" not found in {kind} "{ref["name"]}"')
            return entries[ref["key"]].decode(errors="replace") if ref["key"] in entries else None
    return _reference_value(pod, container, source)


def _service_variables(store: Store, pod: Object) -> dict[str, str]:
    variables: dict[str, str] = {}
    services = store.list("Service", pod["metadata"]["namespace"])
    for service in services if pod["spec"].get("enableServiceLinks", True) else []:
        address, ports = service["spec"].get("clusterIP"), service["spec"].get("ports")
        if address and address != "None" and ports:
            name = service["metadata"]["name"].upper().replace("-", "_")
            variables |= {f"{name}_SERVICE_HOST": address, f"{name}_SERVICE_PORT": str(ports[0]["port"])}
            named = {port["name"].upper().replace("-", "_"): port["port"] for port in ports if port.get("name")}
            variables |= {f"{name}_SERVICE_PORT_{key}": str(port) for key, port in named.items()}
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
        """Make a volume. Return its folder and whether it is read-only."""
        path = self.folder / volume["name"]
        if ref := volume.get("hostPath"):
            return self._host_path(ref), False
        if ref := volume.get("persistentVolumeClaim"):
            return self._claim(ref)
        files = {} if volume.get("emptyDir") is not None else self._files(volume)
        path.mkdir(parents=True, exist_ok=True)
        if volume.get("emptyDir") is not None:
            if dig(volume, "emptyDir.medium") == "Memory" and "sizeLimit" in volume["emptyDir"]:
                size = int(quantity(volume["emptyDir"]["sizeLimit"]))
                linux.mount("tmpfs", path, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, f"size={size},mode=777")
            path.chmod(0o777)
            self._group(path)
            return path, False
        for name, (data, mode) in files.items():
            target = path / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            target.chmod(mode)
            self._group(target)
        return path, True

    def _group(self, path: Path) -> None:
        group = dig(self.pod, "spec.securityContext.fsGroup")
        if group is not None:
            os.chown(path, -1, group)
            mode = path.stat().st_mode & 0o7777
            path.chmod(mode | (0o2070 if path.is_dir() else (0o040 | (mode & 0o100) >> 3)))

    def _files(self, volume: Object) -> Files:
        """Return the files of a volume, or of one source of a projected volume: content and mode by path."""
        if (projected := volume.get("projected")) is not None:
            files: Files = {}
            for source in projected.get("sources") or []:
                mode = {"defaultMode": projected.get("defaultMode", 0o644)}
                files |= self._files({key: {**ref, **mode} for key, ref in source.items()})
            return files
        for key, kind in _SOURCES.items():
            if ref := volume.get(key):
                return self._entries(kind, ref)
        if ref := volume.get("downwardAPI"):
            mode, items = ref.get("defaultMode", 0o644), ref.get("items") or []
            texts = {item["path"]: _reference_value(self.pod, {}, item).encode() for item in items}
            return {item["path"]: (texts[item["path"]], item.get("mode", mode)) for item in items}
        if ref := volume.get("serviceAccountToken"):
            return {ref["path"]: (b"token-of-a-simulated-cluster", ref["defaultMode"])}
        kinds = ", ".join(key for key in volume if key != "name")
        raise NotCoveredError(f"no runner here has volumes of the kind {kinds}")

    def _entries(self, kind: str, ref: Object) -> Files:
        entries, mode = _contents(self.store, self.pod, kind, ref), ref.get("defaultMode", 0o644)
        items = ref.get("items") or [{"key": key, "path": key} for key in entries]
        for item in items:
            if item["key"] not in entries and not ref.get("optional"):
                name = ref.get("name") or ref["secretName"]
                raise NotYet(f'references non-existent key "{item["key"]}" of {kind} "{name}"')
        return {i["path"]: (entries[i["key"]], i.get("mode", mode)) for i in items if i["key"] in entries}

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
        claim = self.store.get("PersistentVolumeClaim", ref["claimName"], self.pod["metadata"]["namespace"])
        if claim is None or dig(claim, "status.phase") != "Bound":
            raise NotYet(f'the PersistentVolumeClaim "{ref["claimName"]}" is {"not bound" if claim else "not found"}')
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
            base, read_only = self.paths[item["name"]]
            sub_path = item.get("subPath") or expand(item.get("subPathExpr") or "", env)
            source = base / sub_path
            if not source.resolve().is_relative_to(base.resolve()):
                raise NotYet(f"subPath {sub_path} leads out of the volume")
            if not source.exists():
                source.mkdir(parents=True)
            result.append(Mount(source, item["mountPath"], read_only or bool(item.get("readOnly"))))
        return result

    def remove(self) -> None:
        """Remove volumes that live as long as the pod."""
        shutil.rmtree(self.folder, ignore_errors=True)
