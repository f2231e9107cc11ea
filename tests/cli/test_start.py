"""The command always starts: whatever surrounds it is the command's, not ours."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from eroica.start import ignored_before, isolated

COMMAND = ["sh", "-c", 'echo "ran $KEPT"; exit 3']
SCRIPT = Path(__file__).parents[2] / "scripts" / "eroica"
BY_MODULE = [sys.executable, "-m", "eroica"]


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


def test_ignored_signals_and_the_mask_are_the_commands(tmp_path: Path, by_script: list[str]) -> None:
    show = "grep -E '^(SigIgn|SigBlk):' /proc/self/status"
    ignored = {signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGUSR1}

    def surround() -> None:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})

    said = []
    for command in (["sh", "-c", show], [*by_script, "run", "--quiet", "--no-footer", "--", "sh", "-c", show]):
        done = subprocess.run(
            command, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, check=True, timeout=60,
            restore_signals=False, preexec_fn=surround,
        )  # fmt: skip
        said.append(done.stdout)
    assert said[0] == said[1]
    assert ignored_before(said[0].split()[-1]) >= ignored


def test_a_mask_that_is_none_ignores_nothing() -> None:
    assert ignored_before("") == ignored_before("no number") == frozenset()
    assert ignored_before("0000000000001001") == {1, 13}


def test_without_its_python_the_command_runs_all_the_same(tmp_path: Path, by_script: list[str]) -> None:
    start = Path(by_script[0] + "-start")
    start.write_text("#!/nowhere/python\n")
    done = run(by_script, tmp_path)
    assert (done.returncode, done.stdout) == (3, "ran all\n")
    assert "unwatched" in done.stderr
    other = subprocess.run([*by_script, "status"], capture_output=True, text=True, check=False, timeout=60)
    assert other.returncode == 127 and "install it again" in other.stderr


def test_with_a_broken_installation_the_command_runs_all_the_same(tmp_path: Path) -> None:
    broken = "import sys; sys.modules['click'] = None; from eroica.start import main; main()"
    done = run([sys.executable, "-I", "-c", broken], tmp_path)
    assert (done.returncode, done.stdout) == (3, "ran all\n")
    assert "unwatched" in done.stderr and "Traceback" not in done.stderr


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
        isolated("eroica.hardware", "--nonsense"), cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (2, "eroica.hardware: --nonsense has no value\n")


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
    with subprocess.Popen(command, cwd=tmp_path, env=environment(tmp_path), stderr=subprocess.DEVNULL) as process:
        time.sleep(after_s)
        process.send_signal(number)
        assert process.wait(20) == -number
    assert not list((tmp_path / "runtime").rglob("*.claim"))
    assert not [name for name in (tmp_path / "runtime").rglob("*") if name.name != f"eroica-{os.getuid()}"]
    end = time.monotonic() + 20  # whoever was being started sees on a busy machine a little later that it is alone
    while processes_of(tmp_path) and time.monotonic() < end:
        time.sleep(0.05)
    assert not processes_of(tmp_path)


def processes_of(place: Path) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            told = (entry / "environ").read_bytes() if entry.name.isdigit() else b""
        except OSError:
            continue
        if os.fsencode(place / "runtime") in told and int(entry.name) != os.getpid():
            found.append(entry.name)
    return found
