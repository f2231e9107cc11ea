"""Words that somebody plants in a job's own store: real store, real program; each would leave a mark if it were run."""

from __future__ import annotations

import os
import pickle
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from eroica.agent.home import _address_in
from eroica.agent.rendezvous import KEY, Answer, Errand
from eroica.errors import InputError
from eroica.start import among_the_users

dist = pytest.importorskip("torch.distributed")
MARK = "planted"


class Acts:
    """What touches a file where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {MARK}",)


def address(**fields: object) -> bytes:
    return msgspec.json.encode({"url": "http://127.0.0.1:9", "token": "t" * 32, "pid": 0, "host": "h", **fields})


WORDS = {
    "pickle": pickle.dumps(Acts(), protocol=0),
    "Python": b"__import__('os').system('touch planted')",
    "a shell's": b"; touch planted; $(touch planted) `touch planted`",
    "in a token": address(token="x\r\nX-Header: 1"),
    "a file's address": address(url="file:///etc/passwd"),
    "a library of a stranger": address(url="http://127.0.0.1:9/%(touch planted)s{0.__class__}"),
}


@pytest.fixture(scope="module")
def store() -> Iterator[Any]:
    yield dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def looked_up(store: Any, place: Path) -> Answer:
    """What the agent's own program finds there."""
    errand = Errand(what="look_up", host="127.0.0.1", port=store.port, patience_s=1.0)
    done = subprocess.run(
        among_the_users("eroica.agent.rendezvous"), input=msgspec.json.encode(errand), cwd=place, capture_output=True,
        timeout=60, check=True, env={**os.environ, "TMPDIR": str(place)},
    )  # fmt: skip
    return msgspec.json.decode(done.stdout, type=Answer)


def test_a_pickle_in_the_store_is_a_text_like_any_other(store: Any, tmp_path: Path) -> None:
    store.set(KEY, WORDS["pickle"].decode())
    found = looked_up(store, tmp_path)
    assert found.word and not found.problem
    with pytest.raises(InputError, match="no address"):
        _address_in(found.word)
    assert not (tmp_path / MARK).exists()


@pytest.mark.parametrize("name", WORDS)
def test_no_planted_word_is_run_or_leads_off_the_network(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    word = WORDS[name].decode("utf-8", "replace")
    try:
        home = _address_in(word)
    except InputError as error:
        assert "\n" not in str(error)
    else:
        assert home.url.startswith(("http://", "https://"))
        assert home.token.isprintable() and home.host.isprintable()
    assert not (tmp_path / MARK).exists()
