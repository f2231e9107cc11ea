"""Thirty hostile answers beside good ones: the host stays as it was, other results stay right, each attack is reported."""

import json
import os
import subprocess
import tempfile
from pathlib import Path

import msgspec

from cloudeval import problems
from cloudeval.workers import run_all

HERE = Path(__file__).parent
#: Checks that let an attack run for some seconds before they ask for a page that it does not serve.
PATIENT = """
def check(t, v):
    t.eventually(lambda: t.pods() and t.pods()[0]["status"].get("podIP"), "no pod")
    t.logs(t.pods()[0])
    t.sleep(3)
    t.http(t.pods()[0], 8080)
"""
PATIENT_PROXY = """
def check(t, v):
    for _ in range(5):
        t.http(10500, "/", timeout_s=1)
        t.sleep(0.3)
    t.http(10500, "/", status=299)
"""
ROUTES = "route_config: {virtual_hosts: [{name: v, domains: ['*'], routes: [{match: {prefix: /}, direct_response: {status: 200}}]}]}"
ROUTER = '[{name: r, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]'


def pod(command: str, container: str = "", spec: str = "") -> str:
    shell = json.dumps(["sh", "-c", command])
    return (
        f"apiVersion: v1\nkind: Pod\nmetadata: {{name: evil, labels: {{tier: x}}}}\nspec:\n  {spec or 'restartPolicy: Always'}\n"
        f"  containers:\n  - name: server\n    image: busybox:1.36\n    command: {shell}\n    {container}\n"
    )


def envoy(hcm: str = "", filters: str = "[]", extra: str = "") -> str:
    return (
        "static_resources:\n  listeners:\n  - name: l\n    address: {socket_address: {address: 127.0.0.1, port_value: 10500}}\n    filter_chains:\n    - filters:\n"
        "      - name: h\n        typed_config:\n"
        '          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager\n'
        f"          stat_prefix: s\n          {hcm or ROUTES}\n          http_filters: {filters if filters != '[]' else ROUTER}\n{extra}"
    )


def lua(code: str) -> str:
    source = json.dumps(code)
    return (
        '[{name: lua, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua, default_source_code: {inline_string: '
        f"{source}}}}}}}, {ROUTER[1:-1]}]"
    )


def attacks(canary: Path) -> dict[str, tuple[str, str]]:
    """Return name → (problem, answer)."""
    host = str(canary)
    routes = "route_config: {virtual_hosts: [{name: v, domains: ['*'], routes: [{match: {prefix: /}, direct_response: {status: 200, body: {filename: %s}}}]}]}"
    mount = "volumeMounts: [{name: h, mountPath: /h}]"
    bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join(['*' + chr(97 + n)] * 9)}]\n" for n in range(8)
    )
    cluster = {
        "fork bomb": pod("f() { f | f & }; f; while :; do f; done"),
        "process flood": pod("while :; do sleep 1000 & done"),
        "fills the disk": pod("while :; do cat /bin/busybox >> /fill; done"),
        "fills a volume": pod(
            "while :; do cat /bin/busybox >> /h/fill; done", mount, "volumes: [{name: h, emptyDir: {}}]"
        ),
        "takes all memory": pod("x=x; while :; do x=$x$x; done"),
        "fills shared memory": pod("while :; do cat /bin/busybox >> /dev/shm/fill; done"),
        "endless log": pod("while :; do echo spam spam spam spam spam spam spam spam; done"),
        "busy loops": pod("for i in 1 2 3 4 5 6 7 8; do while :; do :; done & done; wait"),
        "ignores the signal": pod("trap '' TERM INT HUP; while :; do sleep 1; done"),
        "daemons that outlive": pod("(setsid sh -c 'while :; do sleep 1; done' &) ; exit 0"),
        "writes to a host path": pod(
            f"echo owned > /h/{canary.name}; sleep 60",
            mount,
            f"volumes: [{{name: h, hostPath: {{path: {canary.parent}}}}}]",
        ),
        "reads the host's root": pod(
            "ls /h/work /h/root && cat /h/etc/shadow; sleep 60", mount, "volumes: [{name: h, hostPath: {path: /}}]"
        ),
        "container socket": pod(
            "ls -l /h; sleep 60", mount, "volumes: [{name: h, hostPath: {path: /run/docker.sock, type: Socket}}]"
        ),
        "privileged": pod("mount; sleep 60", "securityContext: {privileged: true}"),
        "all capabilities": pod(
            "sleep 60", "securityContext: {capabilities: {add: [SYS_ADMIN, SYS_MODULE, SYS_PTRACE]}}"
        ),
        "host processes": pod("kill -9 -1; sleep 60", spec="hostPID: true"),
        "host network": pod(
            "ip link del br0; ip link set lo down; wget -T 2 -qO- http://10.0.2.2; sleep 60", spec="hostNetwork: true"
        ),
        "mounts inside": pod("mount -t tmpfs x /mnt && mount --bind / /mnt && echo mounted; sleep 60"),
        "kernel settings": pod("echo 1 > /proc/sys/kernel/panic; echo b > /proc/sysrq-trigger; sleep 60"),
        "host name": pod("hostname owned; sleep 60"),
        "raw device": pod("mknod /d b 254 0 && dd if=/dev/zero of=/d count=1; mknod /m c 1 1 && cat /m; sleep 60"),
        "escape by a link": pod(
            "ln -s / /h/all; sleep 60",
            "volumeMounts: [{name: h, mountPath: /h}, {name: h, mountPath: /x, subPath: all}]",
            "volumes: [{name: h, emptyDir: {}}]",
        ),
        "escape by a config key": f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c}}\ndata: {{'../../../../../..{host}': owned}}\n",
        "YAML bomb": bomb,
        "deep nesting": "a: " + "[" * 5000 + "]" * 5000,
        "very long": "a: " + "x" * 2_000_000,
        "many pods": "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: evil}\nspec:\n  replicas: 1000\n  selector: {matchLabels: {a: b}}\n  template:\n    metadata: {labels: {a: b}}\n    spec: {containers: [{name: c, image: busybox, command: [sleep, '999']}]}\n",
    }
    proxy = {
        "Lua runs a command": envoy(filters=lua(f"os.execute('echo owned > {host}')")),
        "access log writes a file": envoy(
            ROUTES
            + f'\n          access_log: [{{name: f, typed_config: {{"@type": type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog, path: {host}}}}}]'
        ),
        "answer reads a file": envoy(routes % "/etc/shadow"),
        "Lua loops for ever": envoy(filters=lua("while true do end")),
        "Lua takes all memory": envoy(filters=lua("local t = {} while true do t[#t+1] = string.rep('x', 1e6) end")),
        "Lua kills": envoy(filters=lua("os.execute('kill -9 -1')")),
    }
    return {name: ("pod-web", text) for name, text in cluster.items()} | {
        name: ("envoy-direct", text) for name, text in proxy.items()
    }


def fingerprint() -> dict[str, object]:
    """Return what must not change: mounts, network, groups, host name, scratch files, processes of containers."""
    return {
        "mounts": sorted(line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()),
        "network": subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout.count("\n"),
        "host name": os.uname().nodename,
        "scratch": sorted(path.name for path in Path("/run/cloudeval").glob("*")),
        "panic": Path("/proc/sys/kernel/panic").read_text(),
    }


def main() -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        canary = Path(name) / "canary"
        canary.write_text("untouched")
        before = fingerprint()
        chosen = attacks(canary)
        loaded = {problem.id: problems.draw(problem) for problem in problems.load()}
        patient = {
            "pod-web": msgspec.structs.replace(loaded["pod-web"], check=PATIENT),
            "envoy-direct": msgspec.structs.replace(loaded["envoy-direct"], check=PATIENT_PROXY),
        }
        hostile = [(attack, (patient[problem], text)) for attack, (problem, text) in chosen.items()]
        names = ("pod-web", "envoy-direct", "pod-args", "job-basic", "svc-clusterip") * 2
        good = [(str(n), (loaded[name], loaded[name].answer)) for n, name in enumerate(names)]
        mixed = [item for pair in zip(hostile, good, strict=False) for item in pair] + hostile[len(good) :]
        verdicts = run_all([test for _, test in mixed], workers=2)
        done = {name: verdict for (name, _), verdict in zip(mixed, verdicts, strict=True)}
        after = fingerprint()
        lines = [
            {
                "attack": attack,
                "outcome": done[attack].outcome,
                "how": done[attack].how,
                "reason": done[attack].reason[:160],
            }
            for attack in chosen
        ]
        result = {
            "attacks": len(chosen),
            "passed as right": [line["attack"] for line in lines if line["outcome"] == "right"],
            "host unchanged": before == after and canary.read_text() == "untouched",
            "changed": {
                key: [str(before[key])[-300:], str(after[key])[-300:]] for key in before if before[key] != after[key]
            },
            "canary": canary.read_text(),
            "good answers right": sum(done[name].outcome == "right" for name, _ in good),
            "good answers": len(good),
            "each": lines,
        }
    (HERE / "results" / "hostile.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
