"""The demo: 20 clients, 3 trustees and a relay in namespaces; three downloads, then three attacks."""

from __future__ import annotations

import contextlib
import hashlib
import random
import tempfile
import time
from pathlib import Path

import click

from prifi import attack
from prifi.errors import LabError
from prifi.lab import Lab, Plan

CLIENTS, TRUSTEES = 20, 3
#: Rounds in which the eavesdropper guesses; enough to see, too few to prove.
GUESSES, GUESSES_BROKEN = 40, 24


def main() -> None:
    """Run the demo.

    Raises:
        LabError: This machine has no namespaces, or an outcome is not the expected one.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        web = Path(name)
        for index in range(3):
            (web / f"file-{index}").write_bytes(random.Random(index).randbytes(40_000))
        _downloads_and_disruptor(web)
        _equivocator(web)
    _eavesdropper()
    click.echo(f"\nthe demo took {time.monotonic() - began:.0f} s")


def _say(text: str) -> None:
    click.echo(click.style(f"\n{text}", bold=True))


def _downloads_and_disruptor(web: Path) -> None:
    _say(f"1. {CLIENTS} clients, {TRUSTEES} trustees, one relay, each in a network namespace; both protections on")
    with Lab(Plan(CLIENTS, TRUSTEES), web) as lab:
        click.echo(f"   anonymity set of {CLIENTS} after {lab.wait():.1f} s (processes, keys, verified shuffle)")
        start = time.monotonic()
        outs = [web / f"out-{index}" for index in range(3)]
        fetches = [lab.curl(5 * index, f"file-{index}", out) for index, out in enumerate(outs)]
        for index, (fetch, out) in enumerate(zip(fetches, outs, strict=True)):
            fetch.communicate()
            equal = _digest(out) == _digest(web / f"file-{index}")
            click.echo(f"   curl at client-{5 * index}: exit {fetch.returncode}, 40,000 bytes, SHA-256 equal: {equal}")
            if not equal:
                raise LabError("a download is not equal to its file")
        status = lab.status("relay")
        rate = status.get("rounds_per_s", 0)
        click.echo(f"   three downloads in {time.monotonic() - start:.1f} s; {rate} rounds a second at the end")
        _say("2. A disruptor: client-2 starts again and flips bits in other members' cells")
        lab.replace("client-2", "flip")
        _until(lab, "relay", "client-2 is gone")
        lab.wait()
        fetch = lab.curl(0, "file-0", web / "out-0")
        words = _until(lab, "relay", "blame: client-2")
        click.echo(f"   the relay's log: {words}")
        click.echo(f"   a trustee's log: {_until(lab, 'trustee-0', 'blame: client-2')}")
        fetch.communicate()
        click.echo(f"   the download went on in the next epoch: exit {fetch.returncode}")


def _equivocator(web: Path) -> None:
    _say("3. An equivocating relay: it tells each client something else, to see who reacts")
    with Lab(Plan(6, TRUSTEES, misbehave={"relay": "equivocate"}), web) as lab:
        lab.wait()
        (web / "token").write_bytes(b"<token:0000>" * 20)
        fetch = lab.curl(0, "token", web / "out-0", seconds=15)
        click.echo(f"   the relay's log: {_until(lab, 'relay', 'did not open')}")
        click.echo(f"   a trustee's log: {_until(lab, 'trustee-0', 'blame: relay')}")
        fetch.kill()
        fetch.communicate()


def _eavesdropper() -> None:
    _say("4. An eavesdropper on the LAN: tcpdump and a classifier guess which client fetches")
    outcome = attack.run("listen", True, GUESSES)
    low, high = outcome["interval"]
    found = f"   right in {outcome['right']} of {GUESSES} guesses among {outcome['clients']} clients"
    click.echo(
        f"{found}: {outcome['accuracy']:.0%}, 95 % interval {low:.0%} to {high:.0%}; chance {outcome['chance']:.0%}"
    )
    broken = attack.run("listen", False, GUESSES_BROKEN)
    click.echo(f"   with broken clients that send only when they have data: {broken['accuracy']:.0%}")


def _until(lab: Lab, member: str, words: str, seconds: float = 60.0) -> str:
    """Return the log line with the words, once it is there."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for line in lab.log(member).splitlines():
            if words in line:
                return line.split(" ", 3)[-1]
        time.sleep(0.1)
    raise LabError(f"{member} did not tell “{words}”: {lab.log(member)[-400:]}")


def _digest(path: Path) -> str:
    with contextlib.suppress(OSError):
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return ""
