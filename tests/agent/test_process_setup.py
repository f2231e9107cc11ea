"""What the agent reads of a worker's process, and what it never reads."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec

from eroica.agent.setup import (
    format_listed,
    parse_affinity,
    parse_environment,
    parse_listed,
    process_setup,
)
from eroica.hardware.host import parse_quota
from eroica.wire.variables import ALLOWED

SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "geheim-1",
    "HF_TOKEN": "geheim-2",
    "WANDB_API_KEY": "geheim-3",
    "EROICA_TOKEN": "geheim-4",
    "TORCH_HUB_TOKEN": "geheim-5",
    "NCCL_AUTH_KEY": "geheim-6",
    "PATH": "/geheim-7",
    "PYTHONPATH": "/geheim-8",
    "MY_OMP_NUM_THREADS": "geheim-9",
    "PYTORCH_PASSWORD": "geheim-10",
    "TORCH_STORE": "redis://me:geheim-11@host:1/0",
    "CUDA_HOME": "/home/geheim-12/cuda-12",
    "NCCL_PASS": "geheim-13",
    "TORCH_PASSWD": "geheim-14",
    "PYTORCH_PAT": "geheim-15",
    "CUDA_PIN": "geheim-16",
    "TORCH_API": "geheim-17",
    "NCCL_IB_HCA": "me:geheim-18@host",
    "NCCL_NET_PLUGIN": "https://geheim-19/x",
}


def test_variables_that_are_not_on_the_list_never_leave_the_process() -> None:
    environment = {"OMP_NUM_THREADS": "3", "NCCL_DEBUG": "WARN", "PYTHONDEVMODE": "1", **SECRETS}
    code = "import sys; print('up', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        facts = process_setup(process.pid)
        process.communicate("")
    assert (facts["env:OMP_NUM_THREADS"], facts["env:NCCL_DEBUG"], facts["env:PYTHONDEVMODE"]) == ("3", "WARN", "1")
    assert "geheim" not in msgspec.json.encode(facts).decode()
    named = {name.removeprefix("env:") for name in facts if name.startswith("env:")}
    assert named & set(SECRETS) == {"NCCL_IB_HCA", "NCCL_NET_PLUGIN"}
    assert (facts["env:NCCL_IB_HCA"], facts["env:NCCL_NET_PLUGIN"]) == ("(hidden)", "(hidden)")
    assert parse_environment(b"LD_PRELOAD=/home/geheim-20/libx.so") == {"env:LD_PRELOAD": "libx.so"}


def test_its_cores_and_priority_are_told() -> None:
    cores = sorted(os.sched_getaffinity(0))
    code = f"import os; os.sched_setaffinity(0, [{cores[0]}]); os.nice(3); print('up', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        facts = process_setup(process.pid)
        process.communicate("\n")
    assert (facts["affinity"], facts["affinity_cores"]) == (str(cores[0]), "1")
    assert int(facts["nice"]) == min(os.getpriority(os.PRIO_PROCESS, 0) + 3, 19)
    assert facts["kernel"] == os.uname().release


def test_a_process_that_is_gone_leaves_the_facts_of_its_host_only() -> None:
    assert not {"affinity", "nice"} & set(process_setup(2**30)) and "kernel" in process_setup(2**30)


def test_long_and_broken_values_are_cut_and_read() -> None:
    facts = parse_environment(b"OMP_PLACES=" + b"a" * 500 + b"\0NCCL_\xff=1\0OMP_DYNAMIC\0\0NCCL_ALGO=\xff")
    assert len(facts["env:OMP_PLACES"]) == 80 and set(facts) == {"env:OMP_PLACES", "env:NCCL_ALGO"}
    everything = b"\0".join(name.encode() + b"=1" for name in sorted(ALLOWED))
    assert len(parse_environment(everything)) == 40


def test_quotas_and_lists_of_cores() -> None:
    assert parse_quota("200000 100000") == 2.0
    assert parse_quota("max 100000") is None and parse_quota("-1 100000") is None and parse_quota("") is None
    assert parse_listed("0-3,8,10-11") == {0, 1, 2, 3, 8, 10, 11}
    assert format_listed({0, 1, 2, 3, 8, 10, 11}) == "0-3,8,10-11"
    assert (parse_listed(""), parse_listed("x-y,z"), format_listed(())) == (set(), set(), "")
    assert parse_affinity("Name: x\nCpus_allowed_list:\t0-1\n") == ("0-1", 2)
    assert parse_affinity("Name: x\n") == ("", 0)
