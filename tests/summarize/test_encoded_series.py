import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eroica.errors import InputError
from eroica.summarize import decode_series, encode_series


@given(st.lists(st.integers(-(2**62), 2**62), max_size=50))
def test_integers_come_back_as_they_were(values):
    array = np.array(values, dtype=np.int64)
    assert decode_series(encode_series(array), np.int64).tolist() == values


@given(st.lists(st.floats(0, 1e9, width=32), max_size=50))
def test_microseconds_come_back_within_a_twentieth_of_a_percent(values):
    array = np.array(values, dtype=np.float32)
    decoded = decode_series(encode_series(array), np.float32)
    assert np.all(np.abs(decoded - array) <= 0.0005 * array + 1e-37)


def test_bytes_are_little_endian_whatever_the_machine():
    assert encode_series(np.array([1, 2], dtype=">i4")) == b"\0\x01\0\0\0\x02\0\0\0"
    assert zlib.decompress(encode_series(np.full(100, 3, dtype=">i4"))) == b"\x03\0\0\0" * 100


def test_short_series_that_were_sent_compressed_are_read_as_well():
    assert decode_series(zlib.compress(b"\x01\0\0\0\x02\0\0\0"), np.int32).tolist() == [1, 2]


def test_what_hardly_gets_smaller_stays_plain():
    noise = np.random.default_rng(1).random(400)
    packed = encode_series(noise)
    assert len(packed) == noise.nbytes + 1
    assert decode_series(packed, np.float64).tolist() == noise.tolist()


def test_nothing_is_no_bytes():
    assert encode_series(np.empty(0, dtype=np.float32)) == b""
    assert decode_series(b"", np.int32).shape == (0,)


@pytest.mark.parametrize(
    "data", [b"\x00", b"\x00\x01", bytes(16_000_005), b"no series", zlib.compress(b"abc"), zlib.compress(b"abcd")[:-2]]
)
def test_damaged_bytes_are_refused(data):
    with pytest.raises(InputError):
        decode_series(data, np.int32)


def test_a_bomb_is_refused():
    with pytest.raises(InputError):
        decode_series(zlib.compress(bytes(20_000_000)), np.int32)


def test_infinity_survives_the_rounding():
    assert decode_series(encode_series(np.array([np.inf], dtype=np.float32)), np.float32)[0] == np.inf
