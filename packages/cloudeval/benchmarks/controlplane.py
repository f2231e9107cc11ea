"""Starts the real control plane that `make control-plane` built: etcd, kube-apiserver, and optionally the controllers."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from cloudeval.cache import cache_folder
from cloudeval.errors import RunnerError

_TOKEN = "cloudeval-local-token"


def missing() -> str | None:
    """Return why the control plane cannot be started, or None."""
    folder = cache_folder() / "control-plane"
    if not (folder / "kube-apiserver").exists():
        return f"no kube-apiserver in {folder}; `make -C packages/cloudeval control-plane` builds it"
    return None if shutil.which("etcd") else "etcd is missing; install etcd-server"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(*, controllers: bool = False) -> Iterator[Path]:
    """Start the control plane and yield the path of a kubeconfig. Everything ends with the block."""
    if reason := missing():
        raise RunnerError(reason)
    with tempfile.TemporaryDirectory(prefix="cloudeval-control-plane-") as name, contextlib.ExitStack() as stack:
        folder, bin_folder = Path(name), cache_folder() / "control-plane"
        etcd, peer, secure = _free_port(), _free_port(), _free_port()
        key = folder / "service-account.key"
        subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
        (folder / "tokens.csv").write_text(f"{_TOKEN},admin,1,system:masters\n")
        config = folder / "kubeconfig"
        config.write_text(
            f"apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n"
            f"clusters: [{{name: c, cluster: {{server: 'https://127.0.0.1:{secure}', insecure-skip-tls-verify: true}}}}]\n"
            f"users: [{{name: u, user: {{token: {_TOKEN}}}}}]\n"
        )
        url, peers = f"http://127.0.0.1:{etcd}", f"http://127.0.0.1:{peer}"
        _start(
            stack,
            folder,
            "etcd",
            [
                "etcd",
                "--data-dir",
                str(folder / "etcd"),
                "--listen-client-urls",
                url,
                "--advertise-client-urls",
                url,
                "--listen-peer-urls",
                peers,
                "--initial-advertise-peer-urls",
                peers,
                "--initial-cluster",
                f"default={peers}",
                "--unsafe-no-fsync",
            ],
        )
        _start(
            stack,
            folder,
            "apiserver",
            [
                str(bin_folder / "kube-apiserver"),
                f"--etcd-servers={url}",
                f"--secure-port={secure}",
                "--bind-address=127.0.0.1",
                "--insecure-port=0",
                f"--cert-dir={folder}/certs",
                f"--token-auth-file={folder}/tokens.csv",
                "--authorization-mode=RBAC",
                "--service-cluster-ip-range=10.96.0.0/16",
                f"--service-account-key-file={key}",
                f"--service-account-signing-key-file={key}",
                "--service-account-issuer=https://cloudeval.local",
                "--disable-admission-plugins=ServiceAccount",
            ],
        )
        _wait(f"https://127.0.0.1:{secure}/readyz")
        if controllers:
            _start(
                stack,
                folder,
                "controllers",
                [
                    str(bin_folder / "kube-controller-manager"),
                    f"--kubeconfig={config}",
                    "--leader-elect=false",
                    f"--secure-port={_free_port()}",
                    "--port=0",
                    f"--service-account-private-key-file={key}",
                    "--controllers=*,-nodelifecycle,-ttl,-attachdetach",
                ],
            )
        yield config


def _start(stack: contextlib.ExitStack, folder: Path, name: str, arguments: list[str]) -> None:
    log = stack.enter_context((folder / f"{name}.log").open("wb"))
    process = subprocess.Popen(
        arguments, stdout=log, stderr=log, env={**os.environ, "ETCD_UNSUPPORTED_ARCH": "arm64"}, cwd=folder
    )

    def end() -> None:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    stack.callback(end)


def _wait(url: str, timeout_s: float = 90) -> None:
    deadline = time.monotonic() + timeout_s
    with httpx.Client(verify=False, headers={"Authorization": f"Bearer {_TOKEN}"}, trust_env=False) as client:
        while time.monotonic() < deadline:
            with contextlib.suppress(httpx.HTTPError):
                if client.get(url).status_code == 200:
                    return
            time.sleep(0.2)
    raise RunnerError(f"the control plane did not become ready within {timeout_s:.0f} s")
