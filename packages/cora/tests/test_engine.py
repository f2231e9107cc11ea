from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cora import bpf, namespaces
from cora.build import compile_tiers, load_fast
from cora.errors import BuildError
from cora.expressions import field, hash_of, old
from cora.files import write
from cora.functions import FUNCTIONS, load
from cora.machine import Limits
from cora.measure import Bench
from cora.model import choices
from cora.namespaces import ALIAS, Testbed
from cora.placement import Placement, options, why_illegal
from cora.planfile import PlanFile
from cora.program import Build
from cora.traffic import Shape, make_traffic

WHY = bpf.why_not() or namespaces.why_not()
pytestmark = [pytest.mark.root, pytest.mark.skipif(bool(WHY), reason=WHY or "-")]
CORA = [sys.executable, "-m", "cora.cli"]
PAGE = b"x" * 30_000
NETCAT = "nc" if shutil.which("nc") else "busybox nc"

KV_SERVER = """
import socket, struct
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("", 7000)); seen = 0
while True:
    data, who = s.recvfrom(100); seen += 1
    magic, op, _, key, value = struct.unpack("!HBBQQ", data)
    s.sendto(struct.pack("!HBBQQ", magic, 2, 1, key, seen), who)
"""
KV_CLIENT = """
import socket, struct, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(1)
for turn in range(6):
    for attempt in range(8):
        s.sendto(struct.pack("!HBBQQ", 0x4B56, 1, 0, 42, 0), ("10.1.0.2", 7000))
        try:
            print(struct.unpack("!HBBQQ", s.recv(100))[4]); break
        except TimeoutError:
            pass
"""


@pytest.fixture
def bed() -> Iterator[Testbed]:
    with Testbed() as made:
        yield made


def kinds_of_plans(name: str) -> list[str]:
    program = load(name)
    found = ["fast", "slow"]
    return found + ["split"] * any("split" in options(program, table) for table in program.tables.values())


def plan(name: str, wanted: str, settings: dict, path: Path) -> list[str]:
    """Write a plan whose tables have the wanted home where they can."""
    program = load(name, settings)
    chosen = {}
    for table in program.tables.values():
        allowed = {choice.home for choice in choices(program, table, Limits())}
        chosen[table.name] = next(home for home in (wanted, "both", "slow") if home in allowed)
    entries = {table: 16 for table, home in chosen.items() if home == "split"}
    assert not why_illegal(program, Placement(chosen, entries))
    write(path, PlanFile(function=name, settings=settings, homes=chosen, fast_entries=entries))
    return ["--plan", str(path)]


def start(bed: Testbed, name: str, state: Path, *more: str) -> subprocess.Popen[str]:
    argv = [*CORA, "run", name, "--dev", "in", "--dev", "out", "--state", str(state), *more]
    env = {**os.environ, "TMPDIR": str(state.parent)}
    process = bed.start("middle", argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    assert process.stdout
    assert process.stdout.readline() == "ready\n", process.communicate()
    return process


def wait_for(condition, seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


CASES = [(name, plan) for name in FUNCTIONS for plan in kinds_of_plans(name)]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_real_sockets_work_through_every_function_and_plan(bed: Testbed, tmp_path: Path, name: str, kind: str) -> None:
    state = tmp_path / "state.json"
    (tmp_path / "page").write_bytes(PAGE)
    settings = {"meter": {"jobs": [{"name": "a", "ports": [8000, 8000]}]}}.get(name, {})
    process = start(bed, name, state, *plan(name, kind, settings, tmp_path / "plan.json"))
    if name == "cache":
        bed.start("server", [sys.executable, "-c", KV_SERVER])
        answers = bed.run("client", [sys.executable, "-c", KV_CLIENT]).stdout.split()
        assert len(answers) == 6
        assert len(set(answers)) < 6  # later answers come from the cache, not from the server
    else:
        web = [sys.executable, "-m", "http.server", "8000"]
        bed.start("server", web, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        assert wait_for(lambda: ":8000" in bed.run("server", ["ss", "-ltn"]).stdout)
        target = "10.0.0.100" if name == "balancer" else "10.1.0.2"
        for _ in range(2):
            curl = ["curl", "-s", "--max-time", "60", f"http://{target}:8000/page"]
            assert bed.run("client", curl).stdout.encode() == PAGE
        netcat = f"printf 'GET /page HTTP/1.0\\r\\n\\r\\n' | {NETCAT} -w 30 {target} 8000"
        assert bed.run("client", ["sh", "-c", netcat]).stdout.encode().endswith(PAGE)
    process.terminate()
    assert process.wait(20) == 0
    data = json.loads(state.read_text(encoding="utf-8"))
    fast, slow = data["counters"]["fast"], data["counters"]["slow"]
    assert fast["errors"] == slow["errors"] == fast["crossed"] - slow["packets"] == 0
    assert (fast["crossed"] > 0) == (kind != "fast")
    assert any(data["tables"].values())
    if name == "meter":
        assert "10.0.0.2,10.1.0.2" in state.with_suffix(".csv").read_text(encoding="utf-8")


def attached(bed: Testbed) -> bool:
    return any("xdp" in link for link in json.loads(bed.ip("middle", "-j -d link show")))


def test_nothing_is_left_after_kill_9(bed: Testbed, tmp_path: Path) -> None:
    process = start(bed, "nat", tmp_path / "state.json")
    assert attached(bed)
    process.kill()
    process.wait()
    assert wait_for(lambda: not attached(bed), 8)
    again = start(bed, "nat", tmp_path / "state.json")
    again.send_signal(signal.SIGINT)
    assert again.wait(20) == 0
    assert not attached(bed)
    assert not list(tmp_path.glob("cora-*"))


def test_namespaces_end_with_the_process_that_made_them(tmp_path: Path) -> None:
    code = (
        "from cora.namespaces import Testbed\nimport time\n"
        "with Testbed() as b:\n print(*(p.pid for p in b.holders.values()), flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    holders = process.stdout.readline().split()
    process.kill()
    process.communicate()
    assert len(holders) == 3
    assert wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in holders), 8)


def test_devices_that_cora_did_not_make_are_refused(bed: Testbed, tmp_path: Path) -> None:
    def refusal(*more: str) -> str:
        done = bed.run("middle", [*CORA, "run", "bucket", "--dev", "in", "--dev", "out", *more])
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        return done.stderr

    bed.ip("middle", "link set in alias other")
    assert "--device-is-mine" in refusal()
    bed.ip("middle", "link set out mtu 4000")
    bed.ip("middle", f"link set in alias {ALIAS}")
    assert "has an MTU of 4000" in refusal()
    assert not attached(bed)
    bed.ip("middle", "link set out mtu 1500 down")
    assert "out is down" in refusal()
    assert (
        "there is no device nowhere"
        in bed.run("middle", [*CORA, "run", "bucket", "--dev", "nowhere", "--dev", "out"]).stderr
    )


def test_100_replans_under_load_lose_nothing(bed: Testbed, tmp_path: Path) -> None:
    bench = Bench(bed, tmp_path)
    state = tmp_path / "state.json"
    script = str(Path(__file__).parent / "moves_under_load.py")
    process = bed.start("middle", [sys.executable, script, str(state)], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    traffic = make_traffic("monitor", Shape(keys=300, skew=1.0, packets=5000, back=0.0))
    sender = bench.send(0, 8000, [(9.0, traffic)])
    sent = json.loads(sender.communicate(timeout=60)[0])
    assert process.wait(60) == 0
    data = json.loads(state.read_text(encoding="utf-8"))
    counted = sum(row["value"]["packets"] for row in data["tables"]["flows"])
    assert data["counters"]["replans"] == 100
    assert data["counters"]["moved"] > 1000
    assert counted + data["counters"]["fast"]["up"] == data["counters"]["fast"]["packets"]
    assert counted >= sent["sent_packets"]
    assert bench.received(1) >= sent["sent_packets"]


def test_a_nat_lets_no_private_source_out(bed: Testbed, tmp_path: Path) -> None:
    bed.run("middle", ["sysctl", "-qw", "net.ipv4.ip_forward=1"])
    start(bed, "nat", tmp_path / "state.json")
    tap = ["timeout", "6", "tcpdump", "-lni", "s0", "ip and src net 10.0.0.0/24"]
    watch = bed.start("server", tap, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert watch.stderr
    watch.stderr.readline()
    bed.run("client", ["ping", "-c", "2", "-W", "1", "10.1.0.2"])  # ICMP is not translated
    bed.run("client", ["ping", "-c", "1", "-W", "1", "-s", "4000", "10.1.0.2"])  # fragments are not supported
    bed.run(
        "client",
        [
            sys.executable,
            "-c",
            "import socket as s; u = s.socket(s.AF_INET, s.SOCK_DGRAM); u.sendto(b'x', ('10.1.0.2', 9))",
        ],
    )
    assert watch.communicate(timeout=20)[0].strip() == ""


def test_a_refusal_by_the_kernel_names_the_table_and_what_to_move(tmp_path: Path) -> None:
    b = Build("greedy")
    small = b.table("small", "hash", key={"source": 32}, value={"n": 64}, entries=16)
    huge = b.table("huge", "hash", key={"source": 32}, value={"n": 64}, entries=1 << 31)
    b.parse("ipv4")
    b.put(small, [field("ip.src")], n=1)
    b.put(huge, [field("ip.src")], n=1)
    b.forward()
    program = b.done()
    with pytest.raises(BuildError, match="at table huge, its largest; move table huge to the slow tier"):
        load_fast(compile_tiers(program, Placement({"small": "fast", "huge": "fast"}), tmp_path))


def test_a_refusal_by_the_verifier_names_the_step_and_keeps_its_last_words(tmp_path: Path) -> None:
    b = Build("branches")  # each branch doubles the states that the verifier walks through
    table = b.table("state", "array", value={"n": 64}, entries=1 << 20)
    b.parse("ipv4", "ports")
    x = b.assign("x", 0)
    for i in range(26):
        with b.when((hash_of(field("ip.src"), i) & 1).eq(1)):
            b.assign("x", x + (1 << i))
    b.access(table, [x & 0xFFFFF], {"n": old("n") * 3 + 1})
    with b.when(x > 12345):
        b.drop()
    b.forward()
    built = compile_tiers(b.done(), Placement({"state": "fast"}), tmp_path)
    with pytest.raises(BuildError, match=r"(?s)at step 55: update state.*move table state to.*processed 1000001 insns"):
        load_fast(built)


def test_a_live_sample_is_profiled_and_counters_are_served_to_prometheus(bed: Testbed, tmp_path: Path) -> None:
    start(bed, "monitor", tmp_path / "state.json", "--metrics", "9105", *plan("monitor", "slow", {}, tmp_path / "p"))
    bed.start("client", ["ping", "-i", "0.2", "10.1.0.2"], stdout=subprocess.DEVNULL)
    done = bed.run("client", [*CORA, "profile", "bucket", "--live", "c0", "--out", str(tmp_path / "profile.json")])
    assert " packets in " in done.stdout, done.stderr
    page = bed.run("middle", ["curl", "-s", "http://127.0.0.1:9105/metrics"]).stdout
    assert 'cora_packets_total{tier="fast",what="up"}' in page


def test_this_process_holds_no_descriptor_of_a_program() -> None:
    names = [str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink() and path.exists()]
    assert not [name for name in names if "bpf_link" in name]
