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

from eroica.cli.run import Launch

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


def test_a_missing_and_a_forbidden_command_say_so_like_a_shell(tmp_path: Path) -> None:
    missing = run(tmp_path, "no-such-command-here")
    assert missing.returncode == 127 and "no-such-command-here" in missing.stderr
    plain = tmp_path / "plain.txt"
    plain.write_text("x")
    assert run(tmp_path, str(plain)).returncode == 126


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP])
def test_a_signal_sent_to_eroica_reaches_the_command_once(tmp_path: Path, number: signal.Signals) -> None:
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


def test_a_directory_that_cannot_be_made_does_not_stop_the_job(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    environment = {**os.environ, "EROICA_RUNTIME_DIR": str(tmp_path / "file" / "x")}
    done = run(tmp_path, sys.executable, "-c", "print('trained')", env=environment)
    assert done.returncode == 0 and done.stdout == "trained\n" and "unwatched" in done.stderr


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
        "eroica.cli.run.private_directory", lambda path: (_ for _ in ()).throw(OSError(28, "disk full"))
    )
    from eroica.settings import Settings

    launch = Launch({**os.environ, "EROICA_JOB": "x", "EROICA_RUN_DIR": str(tmp_path)}, Settings())
    assert "disk full" in launch.problems[0] and launch.finish() is None


def test_a_signal_while_waiting_for_the_verdict_costs_the_verdict_but_not_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from eroica.cli.run import _stop_waiting
    from eroica.model.verdict import Verdict
    from eroica.settings import Settings

    places = {"EROICA_JOB": f"x-{os.getpid()}", "EROICA_RUN_DIR": str(tmp_path), "EROICA_LAUNCHED": "1"}
    launch = Launch({**os.environ, **places}, Settings())
    monkeypatch.setattr(launch, "_tell_collector", lambda: _stop_waiting(signal.SIGTERM, None))
    assert launch.finish() is None
    assert "SIGTERM" in launch.problems[0]
    verdict = Verdict.from_json(launch.no_verdict())
    assert verdict.verdict == "undetermined" and "SIGTERM" in verdict.coverage.notes[0]
