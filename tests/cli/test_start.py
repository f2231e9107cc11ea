"""The command always starts: whatever surrounds it is the command's, not ours."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from eroica.start import command_of, ignored_before, isolated

COMMAND = ["sh", "-c", 'echo "ran $KEPT"; exit 3']
SCRIPT = Path(__file__).parents[2] / "scripts" / "eroica"
BY_MODULE = [sys.executable, "-m", "eroica"]
OPTIONS = ["--out", "ckpt", "--job", "x", "--set", "a=b", "--json", "y", "--quiet", "--"]


@pytest.fixture
def by_script(tmp_path: Path) -> list[str]:
    """The command as an installer lays it: the script, and beside it the file that tells which Python."""
    place = tmp_path / "bin"
    place.mkdir()
    shutil.copy(SCRIPT, place / "eroica")
    start = place / "eroica-start"
    start.write_text(f"#!{sys.executable}\nfrom eroica.start import main\nmain()\n")
    start.chmod(0o700)
    return [str(place / "eroica")]


def environment(place: Path, **variables: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("EROICA_")}
    ours = {"EROICA_RUNTIME_DIR": str(place / "runtime"), "EROICA_SCRATCH_DIR": str(place / "scratch")}
    return {**clean, **ours, "KEPT": "all", **variables}


def run(
    eroica: list[str], place: Path, command: list[str] = COMMAND, options: tuple[str, ...] = (), **variables: str
) -> subprocess.CompletedProcess[str]:
    (place / "runtime").mkdir(exist_ok=True)
    return subprocess.run(
        [*eroica, "run", "--quiet", "--no-footer", *options, "--", *command],
        cwd=place, env=environment(place, **variables), capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize("module", ["click", "msgspec", "starlette", "rich", "json", "subprocess", "eroica"])
def test_modules_of_the_users_path_are_not_ours(module: str, tmp_path: Path, by_script: list[str]) -> None:
    vendor = tmp_path / "vendor"
    vendor.mkdir()
    (vendor / f"{module}.py").write_text("x = 1\n")
    (vendor / "sitecustomize.py").write_text("print('the user is here')\n")
    done = run(by_script, tmp_path, PYTHONPATH=str(vendor))
    assert (done.returncode, done.stdout, done.stderr) == (3, "ran all\n", "")
    (report,) = (tmp_path / "eroica-report").iterdir()
    assert (report / "verdict.json").exists()


SURROUNDINGS = {
    "another home": {"PYTHONHOME": "/nowhere"},
    "a bad seed": {"PYTHONHASHSEED": "abc"},
    "warnings are errors": {"PYTHONWARNINGS": "error"},
    "an encoding that is none": {"PYTHONIOENCODING": "none"},
    "no locale": {"LC_ALL": "nowhere", "LANG": "nowhere"},
    "no terminal": {"TERM": "nonsense", "COLUMNS": "abc", "LINES": "-1"},
    "no certificates": {"SSL_CERT_FILE": "/nowhere", "https_proxy": "::", "all_proxy": "socks9://x"},
    "optimized": {"PYTHONOPTIMIZE": "2", "PYTHONDEVMODE": "1", "PYTHONMALLOC": "debug"},
    "thread counts": {"OMP_NUM_THREADS": "many", "OPENBLAS_NUM_THREADS": "-1"},
    "no temporary directory": {"TMPDIR": "/nowhere"},
    "no home": {"HOME": "/nowhere", "XDG_RUNTIME_DIR": "/nowhere"},
}


@pytest.mark.parametrize("what", SURROUNDINGS)
def test_the_command_starts_whatever_the_environment(what: str, tmp_path: Path, by_script: list[str]) -> None:
    done = run(by_script, tmp_path, **SURROUNDINGS[what])
    assert (done.returncode, done.stdout) == (3, "ran all\n"), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("eroica", ["script", "module"])
@pytest.mark.parametrize(
    ("variables", "options", "said"),
    [
        ({"EROICA_WINDOW_S": "abc"}, (), "window_s cannot be 'abc'"),
        ({}, ("--set", "window_s=abc"), "window_s cannot be 'abc'"),
        ({}, ("--set", "no_such=1"), "no_such"),
        ({"EROICA_CONFIG": "nested.toml"}, (), "nested.toml cannot be used"),
        ({"EROICA_ROLES": "???"}, (), "roles"),
    ],
)
def test_a_broken_setting_is_said_and_the_command_runs_unwatched(
    eroica: str, variables: dict[str, str], options: tuple[str, ...], said: str, tmp_path: Path, by_script: list[str]
) -> None:
    (tmp_path / "nested.toml").write_text("window_s = " + "[" * 20_000 + "\n")
    done = run(by_script if eroica == "script" else BY_MODULE, tmp_path, options=options, **variables)
    assert (done.returncode, done.stdout) == (3, "ran all\n"), done.stderr
    assert "unwatched" in done.stderr and said in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("text", ["window_s = " + "[" * 20_000, "window_s = 'abc'", "\0", "= ="])
def test_a_damaged_settings_file_stops_neither_the_command_nor_an_import(text: str, tmp_path: Path) -> None:
    (tmp_path / "eroica.toml").write_text(text)
    done = run(BY_MODULE, tmp_path)
    assert (done.returncode, done.stdout) == (3, "ran all\n"), done.stderr
    imported = subprocess.run(
        [sys.executable, "-c", "import eroica.auto; print('trains')"],
        cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (imported.returncode, imported.stdout, imported.stderr) == (0, "trains\n", "")


#: What the kernel tells of a process, but for its name and counters.
ATTRIBUTES = """
cd /proc/$$
cat limits oom_score_adj coredump_filter timerslack_ns personality cgroup loginuid sessionid 2>/dev/null
grep -E "^(Umask|Uid|Gid|Groups|Sig[BIC]|Cap|NoNewPrivs|Seccomp|Cpus_allowed|Mems_allowed)" /proc/self/status
nice; ls fd; readlink root
"""


@pytest.mark.parametrize("eroica", ["script", "module"])
def test_limits_rights_and_ranks_of_the_command_are_what_they_are_alone(
    eroica: str, tmp_path: Path, by_script: list[str]
) -> None:
    """The kernel ends agent and collector first where memory runs out, and not the command."""

    pythons_own = (signal.SIGPIPE, signal.SIGXFSZ) if eroica == "script" else ()  # `python -m` cannot tell any more

    def surround() -> None:
        for number in (*pythons_own, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})

    show = ["sh", "-c", ATTRIBUTES]
    ours = [*(by_script if eroica == "script" else BY_MODULE), "run", "--quiet", "--no-footer", "--"]
    alone, watched = (
        subprocess.run(
            command, cwd=tmp_path, env=environment(tmp_path), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            check=True, timeout=60, preexec_fn=surround,
        ).stdout
        for command in (show, [*ours, *show])
    )  # fmt: skip
    assert watched == alone and "Max open files" in alone


def test_the_first_process_of_a_container_buries_orphans_as_a_shell_does(tmp_path: Path, by_script: list[str]) -> None:
    contained = ["unshare", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*contained, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no process namespace can be made: this needs root")
    orphans = "for i in 1 2 3 4 5; do (sleep 0.$i &); done; sleep 1.5; grep -l '^State:.Z' /proc/[0-9]*/status; exit 3"
    done = run([*contained, *by_script], tmp_path, ["sh", "-c", orphans])
    assert (done.returncode, done.stdout) == (3, ""), done.stderr


def test_a_mask_that_is_none_ignores_nothing() -> None:
    assert ignored_before("") == ignored_before("no number") == frozenset()
    assert ignored_before("0000000000001001") == {1, 13}


BLOCK = """
import ctypes, sys
entries = open("/proc/self/environ", "rb").read().split(bytes(1))[:-1]
ours = (b"EROICA_", b"PYTHONPATH=")
print([entry for entry in entries if not entry.startswith(ours)])
"""
#: What a shell or Python would drop, double, sort, decode or set.
ODD = [
    b"name=llama", b"value=7", b"first=1", b"self=me", b"here=there", b"hold=on", b"python=python3", b"IFS=,",
    b"OPTIND=9", b"PS1=> ", b"PWD=/elsewhere", b"OLDPWD=", b"_=under", b"SHLVL=7", b"ENV=/nowhere",
    b"BASH_ENV=/nowhere", b"eroica_why=me",
    b"BASH_FUNC_module%%=() {  echo module\n}", b"my.var=1", b"a-b=2", b"1st=2", b"two words=3", b"=nameless",
    b"no equals sign", b"twice=1", b"twice=2", b"bytes=\xff\xfe", b"back\\slash=\\0\\\\0", b"lines=a\n\nb\n",
]  # fmt: skip


def with_block(command: list[str], block: list[bytes]) -> str:
    """What a command prints that is started with exactly these entries."""
    code = (
        "import ctypes, sys\n"
        "words = [one.encode() for one in sys.argv[2:]]\n"
        "block = eval(sys.argv[1])\n"
        "strings = lambda texts: (ctypes.c_char_p * (len(texts) + 1))(*texts, None)\n"
        "ctypes.CDLL(None).execve(words[0], strings(words), strings(block))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, repr(block), *command], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


@pytest.mark.parametrize("shell", ["/bin/sh", "/bin/bash"])
def test_the_environment_of_the_command_is_what_it_is_alone_byte_by_byte(
    shell: str, tmp_path: Path, by_script: list[str]
) -> None:
    if not Path(shell).exists():
        pytest.skip(f"there is no {shell}")
    (tmp_path / "runtime").mkdir()
    places = [b"EROICA_RUNTIME_DIR=%b" % bytes(tmp_path / "runtime"), b"EROICA_SCRATCH_DIR=%b" % bytes(tmp_path / "s")]
    block = [*ODD, b"PATH=" + os.environb[b"PATH"], *places]
    show = [sys.executable, "-I", "-c", BLOCK]
    alone = with_block(show, block)
    options = ["run", "--quiet", "--no-footer", "--out", str(tmp_path / "out"), "--"]
    assert with_block([shell, *by_script, *options, *show], block) == alone
    assert alone == f"{[one for one in block if not one.startswith(b'EROICA_')]}\n"


@pytest.mark.parametrize("eroica", ["script", "module"])
def test_options_after_the_commands_first_word_are_the_commands(
    eroica: str, tmp_path: Path, by_script: list[str]
) -> None:
    command = ["sh", "-c", 'echo "$@"', "sh", *OPTIONS]
    done = subprocess.run(
        [*(by_script if eroica == "script" else BY_MODULE), "run", "--out", "report", "--quiet", *command],
        cwd=tmp_path, env=environment(tmp_path, EROICA_RUNTIME_DIR=""), capture_output=True, text=True, check=False,
        timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, " ".join(command[4:]) + "\n"), done.stderr
    assert (tmp_path / "report" / "verdict.json").exists() and not (tmp_path / "ckpt").exists()


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["--out", "x", "--", "a", "--", "b"], ["a", "--", "b"]),
        (["--out=x", "--quiet", "a", "--out", "b"], ["a", "--out", "b"]),
        (["--job", "--", "--", "a"], ["a"]),
        (["a", "--", "b"], ["a", "--", "b"]),
        (["-", "x"], ["-", "x"]),
        (["--out"], []),
        ([], []),
    ],
)
def test_the_command_is_found_without_what_reads_options(
    arguments: list[str], command: list[str], tmp_path: Path, by_script: list[str]
) -> None:
    assert command_of(["run", *arguments]) == command
    Path(by_script[0] + "-start").write_text("#!/nowhere/python\n")
    (tmp_path / "a").write_text('#!/bin/sh\necho a "$@"\n')
    (tmp_path / "-").write_text('#!/bin/sh\necho - "$@"\n')
    for name in ("a", "-"):
        (tmp_path / name).chmod(0o700)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        [*by_script, "run", *arguments], env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False,
        timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == ((0, " ".join(command) + "\n") if command else (2, ""))


def limited(**limits: int) -> Callable[[], None]:
    """What gives a child as little, and takes root's exceptions from it."""

    def limit() -> None:
        if "NPROC" in limits:
            os.setgroups([])
            os.setgid(1777)
            os.setuid(1777)
        for name, most in limits.items():
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))

    return limit


@pytest.mark.parametrize(
    "limits",
    [{"AS": 8_000_000}, {"AS": 20_000_000}, {"AS": 40_000_000}, {"AS": 90_000_000}, {"AS": 150_000_000},
     {"NOFILE": 12}, {"FSIZE": 0}, {"FSIZE": 5000}, {"NPROC": 1}],
    ids=str,
)  # fmt: skip
def test_the_command_starts_and_ends_as_it_would_with_little_of_everything(
    limits: dict[str, int], tmp_path: Path, by_script: list[str]
) -> None:
    if "NPROC" in limits:
        if os.getuid() or not os.access("/tmp", os.W_OK):
            pytest.skip("only root becomes somebody who has no process yet")
        by_script = [str(shutil.copy(by_script[0], Path(tempfile.mkdtemp()) / "eroica"))]
        Path(by_script[0]).parent.chmod(0o755)
        Path(by_script[0] + "-start").write_text("#!/usr/bin/python3\n")
        Path(by_script[0] + "-start").chmod(0o755)
    done = subprocess.run(
        [*by_script, "run", "--out", "out", "--", "sh", "-c", "echo ran; exit 3"],
        cwd="/" if "NPROC" in limits else tmp_path, env=environment(tmp_path), capture_output=True, text=True,
        check=False, timeout=60, preexec_fn=limited(**limits),
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (3, "ran\n"), done.stderr
    assert len([line for line in done.stderr.splitlines() if line.startswith("eroica:")]) <= 1, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "module", ["binascii", "msgspec", "click", "eroica.settings", "eroica.wire.places", "eroica.start"]
)
def test_the_command_starts_where_a_module_of_ours_cannot_be_imported(module: str, tmp_path: Path) -> None:
    """An upgrade under way, another version, a library that does not fit."""
    copy = tmp_path / "bin"
    copy.mkdir()
    shutil.copy(SCRIPT, copy / "eroica")
    python = copy / "python"  # which fails to import one module, for whoever begins with it
    real = Path(sys.executable)
    python.write_text(
        f"#!{real} -IS\n"
        + f"""import os, sys
options, code, rest = sys.argv[1:3], sys.argv[4], sys.argv[5:]
first = "import sys; sys.modules[{module!r}] = None\\n"
os.execv({str(real)!r}, [{str(real)!r}, *options, "-c", first + code, *rest])
"""
    )
    python.chmod(0o700)
    (copy / "eroica-start").write_text(f"#!{python}\n")
    done = run([str(copy / "eroica")], tmp_path)
    assert (done.returncode, done.stdout) == (3, "ran all\n"), done.stderr
    assert done.stderr.count("\n") == 1 and "unwatched" in done.stderr, done.stderr


def test_without_its_python_the_command_runs_all_the_same(tmp_path: Path, by_script: list[str]) -> None:
    start = Path(by_script[0] + "-start")
    start.write_text("#!/nowhere/python\n")
    done = run(by_script, tmp_path)
    assert (done.returncode, done.stdout) == (3, "ran all\n")
    assert "unwatched" in done.stderr
    other = subprocess.run([*by_script, "status"], capture_output=True, text=True, check=False, timeout=60)
    assert other.returncode == 127 and "install it again" in other.stderr


def test_the_script_finds_its_python_through_links(tmp_path: Path, by_script: list[str]) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "eroica").symlink_to("../bin/eroica")
    (tmp_path / "there").symlink_to(tmp_path / "a" / "eroica")
    done = subprocess.run([tmp_path / "there", "--version"], capture_output=True, text=True, check=True, timeout=60)
    assert "eroica" in done.stdout


def test_our_programs_find_themselves_isolated_and_not_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "eroica.py").write_text("raise SystemExit(7)\n")
    (tmp_path / "json.py").write_text("raise SystemExit(7)\n")
    done = subprocess.run(
        isolated("eroica.hardware.sampler", "--nonsense"), cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2 and "eroica.hardware.sampler: error:" in done.stderr


def test_a_program_of_ours_steps_back_behind_the_job_as_its_kernel_shares_cores(tmp_path: Path) -> None:
    (tmp_path / "told.py").write_text(
        "import os, pathlib\n"
        "print(os.getpriority(os.PRIO_PROCESS, 0), pathlib.Path('/proc/self/autogroup').read_text())\n"
    )
    if not Path("/proc/self/autogroup").exists():
        pytest.skip("this kernel does not group processes by session")
    ours, before = os.getpriority(os.PRIO_PROCESS, 0), Path("/proc/self/autogroup").read_text()
    code = "import sys, eroica.start; sys.argv[1:] = ['--niceness=7', 'told']; eroica.start._run_module()"
    for own_session in (True, False):
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, start_new_session=own_session, capture_output=True, text=True,
            check=True, timeout=60,
        )  # fmt: skip
        nice, *group = done.stdout.split()
        assert int(nice) == min(19, ours + 7)
        if not own_session:
            assert group == before.split()  # none in the system's first session, and in those of some containers
        elif group:
            assert group[-1] == nice
    assert Path("/proc/self/autogroup").read_text() == before


@pytest.mark.parametrize("after_s", [0.02, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_start_that_is_interrupted_leaves_nothing_behind(
    after_s: float, number: signal.Signals, tmp_path: Path, by_script: list[str]
) -> None:
    (tmp_path / "runtime").mkdir()
    command = [*by_script, "run", "--quiet", "--no-footer", "--", "sleep", "60"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment(tmp_path), stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL) and None,  # noqa: PLW1509 - some runners ignore it
    ) as process:  # fmt: skip
        time.sleep(after_s)
        process.send_signal(number)
        assert process.wait(20) == -number
    assert not list((tmp_path / "runtime").rglob("*.claim"))
    assert not [name for name in (tmp_path / "runtime").rglob("*") if name.name != f"eroica-{os.getuid()}"]
    end = time.monotonic() + 90  # whoever was being started sees on a busy machine a little later that it is alone
    while processes_of(tmp_path) and time.monotonic() < end:
        time.sleep(0.05)
    assert not processes_of(tmp_path)


def processes_of(place: Path) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            told = (entry / "environ").read_bytes() if entry.name.isdigit() else b""
            words = (entry / "cmdline").read_bytes() if told else b""
        except OSError:
            continue
        if os.fsencode(place / "runtime") in told and int(entry.name) != os.getpid():
            found.append(f"{entry.name}: {words!r}")
    return found
