"""Commands that cannot do what they are asked for say why in one error, and show no traceback."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from trainmover.cli import main

TORCHRUN = ("torchrun", "--standalone", "train.py")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("run", "--port", "99999", "--", *TORCHRUN), "99999 is not in the range 0<=x<=65535"),
        (("run", "--port", "http", "--", *TORCHRUN), "'http' is not a valid integer range"),
        (("run", "--host", "no.such.host.invalid", "--", *TORCHRUN), "cannot listen at no.such.host.invalid:0"),
        (
            ("run", "--timeout", "beat", "3", "--", *TORCHRUN),
            "'beat' is not one of 'reconnect_s', 'heartbeat_timeout_s'",
        ),
        (("run", "--timeout", "hold_s", "0", "--", *TORCHRUN), "0.0 is not in the range x>0"),
        (("run", "--timeout", "hold_s", "soon", "--", *TORCHRUN), "'soon' is not a valid float range"),
        (("run", "--patience", "3", "--", *TORCHRUN), "No such option"),
        (("run", "--", "python", "train.py"), "has to begin with torchrun"),
        (("run", "--", "torchrun", "--no-such", "train.py"), "torchrun: "),
        (("run", "--", "torchrun"), "torchrun: the following arguments are required: training_script"),
        (("run", "--", "/no/such/torchrun", "train.py"), "/no/such/torchrun cannot be started: No such file"),
        (("run", "--folder", "/proc/job", "--", *TORCHRUN), "/proc/job"),
        (("status", "--join", "here"), "here is not HOST:PORT"),
        (("status", "--join", "here:0"), "here:0 is not HOST:PORT"),
        (("move", "--from", "a", "--join", "here:99999"), "here:99999 is not HOST:PORT"),
        (("standby", "--join", ":1"), ":1 is not HOST:PORT"),
        (("standby", "--nproc", "0"), "0 is not in the range"),
        (("status",), "no job in trainmover-job"),
    ],
)
def test_a_wrong_option_is_one_clear_error(
    words: tuple[str, ...], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRAINMOVER_CONTROLLER", raising=False)
    done = CliRunner().invoke(main, words)
    assert isinstance(done.exception, SystemExit) and done.exit_code in (1, 2), done.exception
    error = [line for line in done.output.splitlines() if line.startswith("Error")]
    assert len(error) == 1 and expected in " ".join(done.output.split()), done.output


def test_a_port_in_use_and_a_controller_that_is_not_there_are_clear_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINMOVER_TOKEN", "secret")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = CliRunner().invoke(main, ("run", "--folder", str(tmp_path), "--port", str(port), "--", *TORCHRUN))
    assert done.exit_code == 1
    assert f"cannot listen at 127.0.0.1:{port}: Address already in use; give another --port" in done.output
    done = CliRunner().invoke(main, ("status", "--join", f"127.0.0.1:{port}"))
    assert done.exit_code == 1
    assert done.output.startswith(f"Error: no controller answers at 127.0.0.1:{port}")
