import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eroica.errors import InputError
from eroica.model.series import decode_series, encode_series


@given(st.lists(st.integers(-(2**62), 2**62), max_size=50))
def test_integers_come_back_as_they_were(values):
    array = np.array(values, dtype=np.int64)
    assert decode_series(encode_series(array), np.int64).tolist() == values


@given(st.lists(st.floats(0, 1e9, width=32), max_size=50))
def test_microseconds_come_back_within_a_twentieth_of_a_percent(values):
    array = np.array(values, dtype=np.float32)
    decoded = decode_series(encode_series(array), np.float32)
    assert np.all(np.abs(decoded - array) <= 0.0005 * array + 1e-37)


@pytest.mark.parametrize("data", [b"\x00", b"no series", zlib.compress(b"abc"), zlib.compress(b"abcd")[:-2]])
def test_damaged_bytes_are_refused(data):
    with pytest.raises(InputError):
        decode_series(data, np.int32)


def test_a_bomb_is_refused():
    with pytest.raises(InputError):
        decode_series(zlib.compress(bytes(20_000_000)), np.int32)


def test_infinity_survives_the_rounding():
    assert decode_series(encode_series(np.array([np.inf], dtype=np.float32)), np.float32)[0] == np.inf
