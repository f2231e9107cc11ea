"""Containers by runc: OCI configuration, start, exit status, exec, logs. Trees are shared; each container writes to its own layer."""

import contextlib
import json
import os
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloudeval.errors import RunnerError
from cloudeval.runners import images, linux
from cloudeval.runners.sandbox import SCRATCH

#: Capabilities of a container unless its manifest drops them: containerd's default set without MKNOD, SYS_CHROOT and
#: AUDIT_WRITE, which no problem needs.
_USUAL = "CHOWN DAC_OVERRIDE FOWNER FSETID KILL NET_BIND_SERVICE NET_RAW SETFCAP SETGID SETPCAP SETUID"
CAPABILITIES = tuple(_USUAL.split())
#: Capabilities that a manifest may add beyond them: they act on the container's own network or time-sharing only.
ADDABLE = (*CAPABILITIES, "NET_ADMIN", "SYS_NICE", "SYS_CHROOT", "IPC_LOCK")
#: Bytes of a log that are read; the rest of an endless log is left.
LOG_BYTES = 256 * 1024
PROCESSES = 128
#: System calls that containers must not make.
_DENIED = (
    "mount umount2 pivot_root ptrace bpf kexec_load init_module finit_module delete_module keyctl add_key request_key "
    "unshare setns perf_event_open open_by_handle_at userfaultfd reboot swapon swapoff fsopen fsmount move_mount open_tree "
    "process_vm_writev process_vm_readv syslog acct io_uring_setup clock_settime settimeofday"
)
_MASKED = "/proc/kcore /proc/keys /proc/timer_list /proc/sched_debug /sys/firmware /proc/acpi /proc/scsi"
#: (type, destination, options) of the file systems of every container.
_SYSTEM_MOUNTS = (
    ("proc", "/proc", ""),
    ("tmpfs", "/dev", "nosuid strictatime mode=755 size=65536k"),
    ("devpts", "/dev/pts", "nosuid noexec newinstance ptmxmode=0666 mode=0620"),
    ("tmpfs", "/dev/shm", "nosuid noexec nodev mode=1777 size=16384k"),
    ("sysfs", "/sys", "nosuid noexec nodev ro"),
)
#: Parts of runc's messages that tell of a command or mount of the answer, not of the machine.
_ANSWERS_FAULT = ("exec:", "no such file", "chdir", "not a directory", "is a directory", "error mounting")


@dataclass(frozen=True)
class Mount:
    """A folder or file of the sandbox that a container sees."""

    source: Path
    target: str
    read_only: bool = False


@dataclass(frozen=True)
class ContainerSpec:
    """Everything that a container is started with."""

    name: str
    arguments: list[str]
    env: dict[str, str]
    tree: str = "busybox"
    directory: str = "/"
    user: int = 0
    group: int = 0
    groups: tuple[int, ...] = ()
    mounts: tuple[Mount, ...] = ()
    namespace: str | None = None
    hostname: str = "container"
    read_only: bool = False
    capabilities: tuple[str, ...] = CAPABILITIES
    new_privileges: bool = True
    memory_bytes: int | None = None
    cpu_quota_us: int | None = None
    cpu_shares: int | None = None
    sysctls: dict[str, str] = field(default_factory=dict)


class Container:
    """One started container."""

    def __init__(self, spec: ContainerSpec, sandbox: str) -> None:
        self.spec, self.sandbox = spec, sandbox
        self.folder = SCRATCH / "containers" / spec.name
        self.log = SCRATCH / "logs" / f"{spec.name}.log"
        self.pid = 0
        self.exit_code: int | None = None

    def start(self) -> str | None:
        """Start the container. Return why its command could not be started, or None."""
        for part in ("rootfs", "upper", "work"):
            (self.folder / part).mkdir(parents=True, exist_ok=True)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        options = f"lowerdir={images.tree(self.spec.tree)},upperdir={self.folder}/upper,workdir={self.folder}/work"
        linux.mount("overlay", self.folder / "rootfs", "overlay", linux.MS_NODEV, options)
        (self.folder / "config.json").write_text(json.dumps(_configuration(self.spec, self.sandbox)))
        arguments = [*_runc(), "run", "--detach", "--pid-file", f"{self.folder}/pid", "--bundle", str(self.folder)]
        with self.log.open("ab") as log:
            done = subprocess.run(
                [*arguments, self.spec.name], stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=20, check=False
            )
        if done.returncode != 0 or not (self.folder / "pid").exists():
            lines = self.logs().strip().splitlines()
            message = next((line for line in reversed(lines) if "error" in line or "runc" in line), "runc failed")
            self.log.write_text("")
            if any(part in message for part in _ANSWERS_FAULT):
                return message.rpartition("unable to start container process: ")[2].rstrip('"')
            raise RunnerError(f"the container {self.spec.name} could not be started: {message[-300:]}")
        self.pid = int((self.folder / "pid").read_text())
        return None

    def poll(self) -> int | None:
        """Return the exit code once the container's first process has ended; 128 and the signal if one ended it."""
        if self.exit_code is None and self.pid:
            with contextlib.suppress(ChildProcessError):
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    code = os.waitstatus_to_exitcode(status)
                    self.exit_code = code if code >= 0 else 128 - code
        return self.exit_code

    def signal(self, number: int) -> None:
        """Send a signal to the first process."""
        if self.exit_code is None and self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def remove(self) -> None:
        """Kill what runs, and remove the container."""
        self.signal(signal.SIGKILL)
        subprocess.run([*_runc(), "delete", "--force", self.spec.name], capture_output=True, timeout=20, check=False)
        with contextlib.suppress(ChildProcessError):
            if self.exit_code is None and self.pid:
                os.waitpid(self.pid, 0)

    def execute(self, arguments: list[str], timeout_s: float = 5) -> tuple[int, str]:
        """Run a command in the container. Return its exit code and output; 124 if the time ran out, 126 if it cannot start."""
        pid_file = self.folder / "exec.pid"
        pid_file.unlink(missing_ok=True)
        client = subprocess.Popen(
            [*_runc(), "exec", "--pid-file", str(pid_file), self.spec.name, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            output, _ = client.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(OSError, ValueError):
                os.kill(int(pid_file.read_text()), signal.SIGKILL)
            client.kill()
            client.wait()
            return 124, "the command did not end in time"
        text = output[-LOG_BYTES:].decode(errors="replace")
        return (126 if "exec failed" in text and client.returncode else client.returncode), text

    def logs(self) -> str:
        """Return the end of what the container printed."""
        with contextlib.suppress(OSError), self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - LOG_BYTES))
            return file.read(LOG_BYTES).decode(errors="replace")
        return ""


def _runc() -> list[str]:
    return ["runc", "--root", str(SCRATCH / "runc")]


def _configuration(spec: ContainerSpec, sandbox: str) -> dict[str, Any]:
    """Return the OCI configuration of a container."""
    capabilities = [f"CAP_{name}" for name in spec.capabilities]
    granted = ("bounding", "permitted", "effective") if spec.user == 0 else ("bounding",)
    limits = {"RLIMIT_NOFILE": 1024, "RLIMIT_CORE": 0}
    return {
        "ociVersion": "1.0.2",
        "hostname": spec.hostname,
        "root": {"path": "rootfs", "readonly": spec.read_only},
        "mounts": _mounts(spec),
        "process": {
            "terminal": False,
            "args": spec.arguments,
            "cwd": spec.directory,
            "noNewPrivileges": not spec.new_privileges,
            "user": {"uid": spec.user, "gid": spec.group, "additionalGids": list(spec.groups)},
            "env": [f"{key}={value}" for key, value in spec.env.items()],
            "capabilities": dict.fromkeys(granted, capabilities),
            "rlimits": [{"type": name, "soft": number, "hard": number} for name, number in limits.items()],
        },
        "linux": _isolation(spec) | {"cgroupsPath": f"/cloudeval/{sandbox}/{spec.name}", "sysctl": spec.sysctls},
    }


def _mounts(spec: ContainerSpec) -> list[dict[str, Any]]:
    mounts: list[dict[str, Any]] = []
    for kind, target, words in _SYSTEM_MOUNTS:
        mounts.append({"destination": target, "type": kind, "source": kind, "options": words.split()})
    for mount in sorted(spec.mounts, key=lambda mount: mount.target.count("/")):
        options = ["rbind", "nosuid", "nodev", "ro" if mount.read_only else "rw"]
        mounts.append({"destination": mount.target, "type": "bind", "source": str(mount.source), "options": options})
    return mounts


def _isolation(spec: ContainerSpec) -> dict[str, Any]:
    network = f"/run/netns/{spec.namespace}" if spec.namespace else "/proc/1/ns/net"
    resources: dict[str, Any] = {"devices": [{"allow": False, "access": "rwm"}], "pids": {"limit": PROCESSES}}
    if spec.memory_bytes:
        resources["memory"] = {"limit": spec.memory_bytes}
    cpu = {"quota": spec.cpu_quota_us, "period": 100_000 if spec.cpu_quota_us else None, "shares": spec.cpu_shares}
    if any(cpu.values()):
        resources["cpu"] = {key: value for key, value in cpu.items() if value}
    return {
        "namespaces": [
            *({"type": kind} for kind in ("pid", "ipc", "uts", "mount")),
            {"type": "network", "path": network},
        ],
        "resources": resources,
        "maskedPaths": _MASKED.split(),
        "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
        "seccomp": {
            "defaultAction": "SCMP_ACT_ALLOW",
            "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32", "SCMP_ARCH_AARCH64"],
            "syscalls": [{"names": _DENIED.split(), "action": "SCMP_ACT_ERRNO"}],
        },
    }
