"""`eroica run`: status, signals and output of the command pass through unchanged."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from eroica.cli.launch import Launch

EROICA = [sys.executable, "-m", "eroica"]


def run(tmp_path: Path, *command: str, **more: object) -> subprocess.CompletedProcess[str]:
    arguments = [*EROICA, "run", "--quiet", "--out", str(tmp_path / "out"), "--", *command]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False, **more)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize("status", [0, 1, 7, 255])
def test_the_exit_status_is_the_commands_own(tmp_path: Path, status: int) -> None:
    assert run(tmp_path, sys.executable, "-c", f"raise SystemExit({status})").returncode == status


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
def test_a_command_ended_by_a_signal_ends_eroica_by_the_same(tmp_path: Path, number: signal.Signals) -> None:
    code = f"import os; os.kill(os.getpid(), {int(number)})"
    assert run(tmp_path, sys.executable, "-c", code).returncode == -number


def test_output_and_input_pass_through_to_the_byte(tmp_path: Path) -> None:
    code = "import sys; d=sys.stdin.read(); sys.stdout.write(d*2); sys.stderr.write('err:'+d)"
    done = run(tmp_path, sys.executable, "-c", code, input="täst\n")
    assert done.stdout == "täst\ntäst\n" and done.stderr == "err:täst\n"


def test_a_missing_and_a_forbidden_command_say_so_like_a_shell_and_nothing_is_reported_on_them(tmp_path: Path) -> None:
    arguments = [*EROICA, "run", "--out", str(tmp_path / "out"), "--", "no-such-command"]
    missing = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert missing.returncode == 127 and missing.stdout == ""
    assert missing.stderr.splitlines() == ["eroica: cannot run 'no-such-command': No such file or directory"]
    plain = tmp_path / "plain.txt"
    plain.write_text("x")
    assert run(tmp_path, str(plain)).returncode == 126


FOR_THE_COMMAND = [
    *(signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP, signal.SIGXCPU, signal.SIGPWR, signal.SIGVTALRM),
    *(signal.SIGPROF, signal.SIGIO, signal.SIGABRT, signal.SIGRTMIN + 1, signal.SIGRTMAX),
]


@pytest.mark.parametrize("number", FOR_THE_COMMAND)
def test_a_signal_sent_to_eroica_reaches_the_command_once(tmp_path: Path, number: int) -> None:
    log = tmp_path / "log"
    code = f"""
import signal, time, pathlib
log = pathlib.Path({str(log)!r})
got = []
signal.signal({int(number)}, lambda *_: got.append(1))
log.write_text("ready")
end = time.monotonic() + 20
while not got and time.monotonic() < end: time.sleep(0.01)
time.sleep(0.3)
raise SystemExit(40 + len(got))
"""
    process = subprocess.Popen(
        [*EROICA, "run", "--quiet", "--out", str(tmp_path / "out"), "--", sys.executable, "-c", code]
    )
    while not log.exists() or not log.read_text():
        time.sleep(0.02)
    process.send_signal(number)
    assert process.wait(60) == 41


def test_told_to_stop_it_stops_with_the_command_and_goes_on_with_it(tmp_path: Path) -> None:
    names = {name: tmp_path / name for name in ("pid", "end")}
    script = f"echo $$ > {names['pid']}; while [ ! -e {names['end']} ]; do sleep 0.02; done; exit 6"
    arguments = [*EROICA, "run", "--quiet", "--out", str(tmp_path / "out"), "--", "/bin/sh", "-c", script]
    # a group of its own, but not an orphaned process group, in which nobody is stopped
    process = subprocess.Popen(arguments, preexec_fn=os.setpgrp)  # noqa: PLW1509 - no threads here
    while not names["pid"].exists() or not names["pid"].read_text():
        time.sleep(0.02)
    both = (process.pid, int(names["pid"].read_text()))

    def states() -> set[str]:
        return {Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in both}

    process.send_signal(signal.SIGTSTP)
    end = time.monotonic() + 20
    while states() != {"T"} and time.monotonic() < end:
        time.sleep(0.02)
    assert states() == {"T"}
    process.send_signal(signal.SIGCONT)
    names["end"].touch()
    assert process.wait(60) == 6


def test_descriptors_that_were_handed_to_eroica_reach_the_command(tmp_path: Path) -> None:
    with (tmp_path / "three").open("w") as three:
        code = f"import os; os.write({three.fileno()}, b'kept')"
        assert run(tmp_path, sys.executable, "-c", code, pass_fds=[three.fileno()]).returncode == 0
    assert (tmp_path / "three").read_text() == "kept"


def test_started_by_somebody_who_ignores_their_children_it_still_ends_with_the_commands_status(tmp_path: Path) -> None:
    code = "import signal as s; raise SystemExit(30 + (s.getsignal(s.SIGCHLD) == s.SIG_IGN))"
    ignore = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    )
    arguments = [*EROICA, "run", "--quiet", "--out", str(tmp_path / "out"), "--", sys.executable, "-c", code]
    assert subprocess.run([sys.executable, "-c", ignore, *arguments], timeout=60, check=False).returncode == 31


def test_in_a_directory_that_is_gone_the_command_runs_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    code = "import os, sys; os.rmdir('../gone'); os.execv(sys.argv[1], sys.argv[1:])"
    arguments = [*EROICA, "run", "--quiet", "--job", tmp_path.name, "--", "/bin/sh", "-c", "exit 4"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, cwd=tmp_path / "gone", env=environment, timeout=60, check=False)
    assert done.returncode == 4


def test_one_inside_another_leaves_the_job_to_it(tmp_path: Path) -> None:
    report = tmp_path / "out"
    began = time.monotonic()
    done = run(tmp_path, *EROICA, "run", "--", "/bin/sh", "-c", "exit 5")
    assert done.returncode == 5 and done.stderr == ""
    assert json.loads((report / "verdict.json").read_text())["verdict"] == "undetermined"
    assert time.monotonic() - began < 10


def test_one_inside_another_that_wants_its_own_report_is_a_job_of_its_own(tmp_path: Path) -> None:
    inner = [*EROICA, "run", "--quiet", "--out", str(tmp_path / "inner"), "--json", str(tmp_path / "json")]
    done = run(tmp_path, *inner, "--", "/bin/sh", "-c", "exit 6")
    assert done.returncode == 6 and done.stderr == ""
    jobs = {json.loads(path.read_text())["job"] for path in tmp_path.glob("*/verdict.json")}
    assert len(jobs) == 2 and json.loads((tmp_path / "json").read_text())["job"] in jobs


def test_the_final_verdict_is_written_whatever_happened(tmp_path: Path) -> None:
    target = tmp_path / "verdict.json"
    arguments = [*EROICA, "run", "--out", str(tmp_path / "out"), "--json", str(target), "--", sys.executable, "-c", "1"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and done.stdout == ""
    verdict = json.loads(target.read_text())
    assert verdict["verdict"] == "undetermined" and verdict["window"] is None and "No worker" in verdict["summary"]
    assert "No worker" in " ".join(done.stderr.split())
    assert not (tmp_path / "out" / "collector.json").exists()


def test_a_users_own_pythonpath_and_sitecustomize_still_count(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os; os.environ['MINE'] = 'ran'")
    (tmp_path / "mymodule.py").write_text("x = 5")
    code = "import os, mymodule; print(os.environ['MINE'], mymodule.x)"
    done = run(tmp_path, sys.executable, "-c", code, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert done.stdout == "ran 5\n", done.stderr


def test_nothing_of_eroica_is_left_running(tmp_path: Path) -> None:
    run(tmp_path, sys.executable, "-c", "1")
    mine = str(tmp_path / "out")
    alive = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"EROICA_RUN_DIR={mine}\0".encode() in environ.read_bytes():
                alive.append((environ.parent / "cmdline").read_bytes())
        except OSError:
            continue
    assert alive == []


def test_problems_are_kept_not_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "eroica.cli.launch.private_directory", lambda path: (_ for _ in ()).throw(OSError(28, "disk full"))
    )
    from eroica.settings import Settings

    launch = Launch({**os.environ, "EROICA_JOB": "x", "EROICA_RUN_DIR": str(tmp_path)}, Settings())
    assert "disk full" in launch.problems[0] and launch.finish() is None


def test_where_worker_0_is_elsewhere_nothing_is_concluded_though_that_host_was_not_found(tmp_path: Path) -> None:
    from eroica.settings import Settings

    places = {"EROICA_JOB": f"z-{os.getpid()}", "EROICA_RUN_DIR": str(tmp_path)}
    launch = Launch({**os.environ, **places}, Settings())
    end = time.monotonic() + 20
    while not (tmp_path / "collector.json").exists() and time.monotonic() < end:
        time.sleep(0.05)
    (launch.where.runtime / "away").touch()
    assert launch.finish() is None and not launch.concludes and launch.problems == []
    assert {path.name for path in tmp_path.glob("*.json")} <= {"status.json", "history.json"}


def test_a_signal_while_waiting_for_the_verdict_costs_the_verdict_but_not_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from eroica.cli.launch import stop_waiting
    from eroica.model.verdict import Verdict
    from eroica.settings import Settings

    places = {"EROICA_JOB": f"x-{os.getpid()}", "EROICA_RUN_DIR": str(tmp_path), "EROICA_LAUNCHED": "1"}
    launch = Launch({**os.environ, **places}, Settings())
    monkeypatch.setattr(launch, "_tell_collector", lambda: stop_waiting(signal.SIGTERM, None))
    assert launch.finish() is None
    assert "SIGTERM" in launch.problems[0]
    verdict = Verdict.from_json(launch.no_verdict())
    assert verdict.verdict == "undetermined" and "SIGTERM" in verdict.coverage.notes[0]
