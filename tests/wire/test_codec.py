"""Records on the wire."""

from __future__ import annotations

import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eroica.errors import InputError
from eroica.model.worker import Worker
from eroica.wire.codec import MAX_DECODED_BYTES, decode_record, encode_record


def test_a_record_survives_the_way() -> None:
    worker = Worker(global_rank=5, host="ä", pid=1)
    assert decode_record(encode_record(worker), Worker) == worker


@given(st.binary(max_size=200))
def test_any_bytes_end_in_one_clear_error(data: bytes) -> None:
    with pytest.raises(InputError, match="Worker"):
        decode_record(data, Worker)


def test_a_bomb_is_refused_before_it_unpacks() -> None:
    bomb = zlib.compress(msgspec.msgpack.encode({"global_rank": 1, "host": "x" * (MAX_DECODED_BYTES + 10)}))
    with pytest.raises(InputError, match="refused"):
        decode_record(bomb, Worker)
