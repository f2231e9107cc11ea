"""A Slurm of one machine for tests: real munged, slurmctld and slurmd with a configuration of their own.

Each node is a slurmd with a port, a host name and an /etc/hosts of its own (namespaces); they share this machine's
network. Needs root and Debian's packages slurmctld, slurmd, slurm-client and munge.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue")
_UP_S = 30.0
NODES = 2
#: hosts file, host name, command -> the command, in namespaces where they hold.
_AS_NODE = 'mount --bind "$1" /etc/hosts && hostname "$2" && shift 2 && exec "$@"'


def why_no_slurm() -> str:
    """What is missing here, "" if nothing."""
    if os.geteuid() != 0:
        return "Slurm's daemons need root"
    missing = [name for name in (*_PROGRAMS, "unshare") if _found(name) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    known = subprocess.run([_program("slurmd"), "-V"], capture_output=True, text=True, check=False)
    return "" if known.returncode == 0 else "slurmd does not run here"


def _found(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin")


def _program(name: str) -> str:
    return _found(name) or name


class Slurm:
    """Running daemons.

    Args:
        directory: For configuration, state and logs.

    Attributes:
        variables: Environment for clients.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._running: list[subprocess.Popen[bytes]] = []
        self.variables = {"SLURM_CONF": str(directory / "slurm.conf")}

    def __enter__(self) -> Slurm:
        try:
            self._start()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _start(self) -> None:
        for name in ("state", "spool", "log"):
            (self._directory / name).mkdir(mode=0o755, parents=True)
        self._directory.chmod(0o755)
        socket_path = self._munge()
        ports = free_ports(1 + NODES)
        (self._directory / "slurm.conf").write_text(self._configuration(ports, socket_path))
        (self._directory / "cgroup.conf").write_text("CgroupPlugin=autodetect\nIgnoreSystemd=yes\n")
        hosts = self._directory / "hosts"
        names = " ".join(f"node{number}" for number in range(NODES))
        hosts.write_text(f"127.0.0.1 localhost {names} {socket.gethostname()}\n")
        self._daemon(_program("slurmctld"), "-D", "-c")
        for number in range(NODES):
            name = f"node{number}"
            apart = ["unshare", "--mount", "--uts", "--propagation", "private", "sh", "-c", _AS_NODE, "sh"]
            self._daemon(*apart, str(hosts), name, _program("slurmd"), "-D", "-N", name)
        end = time.monotonic() + _UP_S
        while time.monotonic() < end:
            states = self.client("sinfo", "--noheader", "--format=%T").split()
            if states and set(states) <= {"idle"}:
                return
            time.sleep(0.2)
        raise TimeoutError(f"Slurm did not come up: {self.logs()}")

    def _munge(self) -> Path:
        """A munged of our own, with a key of its own."""
        room = self._directory / "munge"
        room.mkdir(mode=0o700)
        (room / "key").write_bytes(os.urandom(128))
        (room / "key").chmod(0o600)
        self._daemon(
            _program("munged"), "--foreground", "--force", f"--key-file={room / 'key'}", f"--socket={room / 'socket'}",
            f"--pid-file={room / 'pid'}", f"--log-file={room / 'log'}", f"--seed-file={room / 'seed'}",
        )  # fmt: skip
        end = time.monotonic() + _UP_S
        while not (room / "socket").exists() and time.monotonic() < end:
            time.sleep(0.05)
        return room / "socket"

    def _configuration(self, ports: list[int], munge: Path) -> str:
        name = socket.gethostname().partition(".")[0]
        place = self._directory
        lines = [
            "ClusterName=test",
            f"SlurmctldHost={name}(127.0.0.1)",
            f"SlurmctldPort={ports[0]}",
            "SlurmUser=root",
            "SlurmdUser=root",
            "AuthType=auth/munge",
            f"AuthInfo=socket={munge}",
            "CredType=cred/munge",
            f"StateSaveLocation={place / 'state'}",
            f"SlurmdSpoolDir={place / 'spool'}/%n",
            f"SlurmctldPidFile={place / 'slurmctld.pid'}",
            f"SlurmdPidFile={place}/slurmd-%n.pid",
            f"SlurmctldLogFile={place / 'log' / 'slurmctld'}",
            f"SlurmdLogFile={place / 'log'}/slurmd-%n",
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "SelectType=select/cons_tres",
            "SchedulerParameters=batch_sched_delay=0",
            "ReturnToService=2",
            "MpiDefault=none",
            "KillWait=25",
            "SlurmdParameters=config_overrides",
        ]
        for number, port in enumerate(ports[1:]):
            lines.append(f"NodeName=node{number} NodeAddr=127.0.0.1 Port={port} CPUs=2 State=UNKNOWN")
        nodes = ",".join(f"node{number}" for number in range(NODES))
        lines.append(f"PartitionName=all Nodes={nodes} Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4")
        return "\n".join(lines) + "\n"

    def _daemon(self, *command: str) -> None:
        with (self._directory / "log" / f"daemon-{len(self._running)}").open("wb") as log:
            self._running.append(
                subprocess.Popen(
                    command,
                    env={**os.environ, **self.variables},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    def client(self, *command: str) -> str:
        """Output of a client's call, "" where it fails."""
        done = subprocess.run(
            [_program(command[0]), *command[1:]],
            env={**os.environ, **self.variables},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return done.stdout if done.returncode == 0 else ""

    def state(self, job: str) -> str:
        """Slurm's word for the state of a job."""
        return self.client("squeue", "--noheader", "--states=all", "--format=%T", "--jobs", job).strip()

    def logs(self) -> str:
        """The end of each daemon's log."""
        files = [*(self._directory / "log").glob("*"), *(self._directory / "munge").glob("log")]
        return "\n".join(f"== {path.name}\n{path.read_text(errors='replace')[-2000:]}" for path in files)

    def end(self) -> None:
        """End the daemons, those that were started last first."""
        for process in reversed(self._running):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._running = []


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    with contextlib.ExitStack() as held:
        doors = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(one.getsockname()[1]) for one in doors]
