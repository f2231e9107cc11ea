"""Pickles are data or an error; nothing in them is ever imported, called or built."""

from __future__ import annotations

import builtins
import functools
import io
import os
import pickle
import struct
from collections import OrderedDict
from datetime import datetime
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eroica.errors import InputError
from eroica.trace.flight import load_data

_DATA = {"version": "2.9", "numbers": [1, -5, 300, 2**40, -(2**62), 1.5], "pair": ("35", "TP"), "no": None, "is": True}


class _Reduced:
    """Pickles as a call of its own choice."""

    def __init__(self, call: object, *arguments: object) -> None:
        self.reduced = call, arguments

    def __reduce__(self) -> tuple[object, ...]:
        return self.reduced


class _WithState:
    def __getstate__(self) -> dict[str, int]:
        return {"a": 1}


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_containers_and_scalars_come_back_as_they_were(protocol: int) -> None:
    shared = [1, 2]
    data = [_DATA, shared, shared, [], {}, (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), "é" * 300, list(range(3000))]
    assert load_data(pickle.dumps(data, protocol=protocol)) == data


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize(
    "what",
    [
        lambda mark: _Reduced(os.system, f"touch {mark}"),
        lambda mark: _Reduced(builtins.eval, f"open({str(mark)!r}, 'w')"),
        lambda mark: _Reduced(builtins.exec, f"open({str(mark)!r}, 'w')"),
        lambda mark: _Reduced(functools.partial, os.mkdir, str(mark)),
        lambda mark: functools.partial(os.mkdir, str(mark)),
        lambda mark: _Reduced(Path.touch, mark),
        lambda mark: _Reduced(os.mkdir, str(mark)),
        PurePosixPath,
        lambda mark: OrderedDict(a=1),
        lambda mark: _WithState(),
        lambda mark: datetime(2026, 1, 1),
        lambda mark: os.system,
        lambda mark: {1, 2},
        lambda mark: complex(1, 2),
        lambda mark: bytearray(b"abc"),
    ],
)
def test_nothing_is_imported_called_or_built(what: object, protocol: int, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    data = pickle.dumps({"version": "2.9", "entries": [what(mark)]}, protocol=protocol)  # type: ignore[operator]
    if protocol < 5 or b"bytearray" in data or b"\x96" not in data:
        with pytest.raises(InputError):
            load_data(data)
    assert not mark.exists()


@pytest.mark.parametrize(
    "program",
    [
        b"\x80\x02cposix\nsystem\nX\x02\x00\x00\x00ls\x85R.",
        b"\x80\x02(X\x02\x00\x00\x00lsiposix\nsystem\n.",
        b"\x80\x02(cposix\nsystem\nX\x02\x00\x00\x00lso.",
        b"\x80\x04X\x05\x00\x00\x00posixX\x06\x00\x00\x00system\x93X\x02\x00\x00\x00ls\x85R.",
        b"\x80\x02ccopyreg\n_reconstructor\n.",
        b"\x80\x02\x82\x01.",
        b"\x80\x02\x83\x01\x00.",
        b"\x80\x02\x84\x01\x00\x00\x00.",
        b"\x80\x02Psomething\n.",
        b"\x80\x02K\x01Q.",
        b"\x80\x02]}b.",
        b"\x80\x02])\x81.",
        b"\x80\x04])}\x92.",
        b"\x80\x05\x97.",
        b"\x80\x05\x98.",
        b"\x80\x02\x8f.",
        b"\x80\x02I5\n.",
        b"\x80\x02L" + b"9" * 100_000 + b"L\n.",
        b"\x80\x02S'a'\n.",
        b"cposix\nsystem\n(S'ls'\ntR.",
    ],
)
def test_instructions_beyond_data_are_refused(program: bytes) -> None:
    with pytest.raises(InputError):
        load_data(program)


@pytest.mark.parametrize(
    "program",
    [
        b"",
        b"\x80",
        b"\x80\x02",
        b"\x80\x02.",
        b"\x80\x02e.",
        b"\x80\x02u.",
        b"\x80\x02]K\x01K\x02s.",
        b"\x80\x02h\x05.",
        b"\x80\x02}]K\x01s.",
        b"\x80\x09].",
        b"\x80\x02X\x01\x00\x00\x00\xff.",
        b"\x80\x02X\xff\xff\xff\x7fabc.",
        b"\x80\x04\x8d" + b"\xff" * 8 + b"abc.",
        b"\x80\x04\x8e" + b"\xff" * 7 + b"\x7f" + b"abc.",
        b"\x80\x04\x95" + b"\xff" * 7 + b"\x7f" + b"].",
        b"\x80\x02\x8a\xff" + b"\x01" * 255 + b".",
        b"\x80\x02\x8b" + struct.pack("<i", 1 << 30) + b".",
        b"\x80\x02\x8b" + struct.pack("<i", -1) + b".",
        b"\x80\x02]r\xff\xff\xff\x7f.",
        b"\x80\x02]j\xff\xff\xff\x7f.",
    ],
)
def test_what_does_not_fit_together_is_an_error_of_one_sentence(program: bytes) -> None:
    with pytest.raises(InputError) as caught:
        load_data(program)
    assert "\n" not in str(caught.value)


def test_lists_that_share_and_contain_each_other_are_no_danger() -> None:
    laughs: list[object] = ["ha"]
    for _ in range(60):
        laughs = [laughs] * 10
    itself: list[object] = []
    itself.append(itself)
    deep: list[object] = []
    for _ in range(200):
        deep = [deep]
    for data in (laughs, itself, deep):
        assert isinstance(load_data(pickle.dumps(data, protocol=2)), list)
    nested = b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b"."
    assert isinstance(load_data(nested), list)


def test_more_lists_than_memory_should_hold_are_refused() -> None:
    with pytest.raises(InputError, match="more lists"):
        load_data(b"\x80\x02" + b"]" * 6_000_000 + b".")


def test_keys_that_could_collide_without_end_are_refused() -> None:
    pair = b"(" + b"K\x01K\x02\x86K\x00" * 60_000 + b"u"
    with pytest.raises(InputError):
        load_data(b"\x80\x02}" + pair + b".")


@settings(max_examples=400, deadline=None)
@given(
    st.data(),
    st.sampled_from([2, 3, 4, 5]),
    st.lists(
        st.tuples(st.integers(0, 400), st.integers(0, 255), st.sampled_from(["set", "insert", "cut"])), max_size=6
    ),
)
def test_a_damaged_pickle_is_data_or_an_error(
    data: st.DataObject, protocol: int, damages: list[tuple[int, int, str]]
) -> None:
    program = bytearray(pickle.dumps(_DATA, protocol=protocol))
    for at, value, how in damages:
        place = at % (len(program) + 1)
        if how == "cut":
            del program[place : place + value % 8]
        elif how == "insert" or place == len(program):
            program.insert(place, value)
        else:
            program[place] = value
    try:
        load_data(bytes(program))
    except InputError:
        return
    reference = io.BytesIO(bytes(program))
    pickle.load(reference)  # what was admitted is a pickle that nobody can object to


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_data_or_an_error(tail: bytes) -> None:
    try:
        load_data(b"\x80\x04" + tail)
    except InputError as error:
        assert str(error)
