from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c4p.errors import BadRequest
from c4p.ring import (
    RingPosition,
    broadcast_operation,
    even_chunks,
    gloo_chunks,
    piece_bytes,
    reducer,
    ring_operation,
)


def slow_allreduce(arrays: list[np.ndarray], chunks: list[tuple[int, int]]) -> np.ndarray:
    """gloo's sum, element by element: chunk c begins at rank c - 1 and goes down to rank c."""
    size = len(arrays)
    result = np.empty_like(arrays[0])
    for chunk, (start, stop) in enumerate(chunks):
        for k in range(start, stop):
            total = arrays[(chunk - 1) % size][k]
            for back in range(2, size + 1):
                total = arrays[(chunk - back) % size][k] + total
            result[k] = total
    return result


def play(operations: list, order: np.random.Generator, again: float = 0.0) -> None:
    """Deliver all pieces in any order; some of them twice, late."""
    size = len(operations)
    under_path = [(rank, piece) for rank, operation in enumerate(operations) for piece in operation.start()]
    while under_path:
        rank, piece = under_path.pop(int(order.integers(len(under_path))))
        receiver = operations[(rank - 1) % size]
        payload = memoryview(bytes(operations[rank].buffer[piece.start : piece.stop]))
        more = receiver.take(piece.number, payload)
        if more is not None:
            under_path += [((rank - 1) % size, following) for following in more]
            if order.random() < again:
                under_path.append((rank, piece))


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(2, 6),
    elements=st.integers(1, 40_000),
    seed=st.integers(0, 1000),
    kind=st.sampled_from(["allreduce", "reduce_scatter", "allgather"]),
)
def test_pieces_in_any_order_some_of_them_twice_give_the_sum_in_gloos_order(
    size: int, elements: int, seed: int, kind: str
) -> None:
    random = np.random.default_rng(seed)
    elements += -elements % size if kind != "allreduce" else 0
    arrays = [(random.standard_normal(elements) * 10).astype(np.float32) for _ in range(size)]
    chunks = gloo_chunks(elements, 4, size) if kind == "allreduce" else even_chunks(elements, size)
    few = min(elements, 200)
    wanted = slow_allreduce([a[:few] for a in arrays], [(min(s, few), min(e, few)) for s, e in chunks])
    work = [array.copy() for array in arrays]
    operations = [
        ring_operation(
            kind, memoryview(w.view(np.uint8)), 4, chunks, RingPosition(rank, size, 4),
            None if kind == "allgather" else reducer(w, "sum"),
        )
        for rank, w in enumerate(work)
    ]  # fmt: skip
    play(operations, random, again=0.3)
    assert all(operation.complete for operation in operations)
    if kind == "allreduce":
        assert all(w[:few].tobytes() == wanted.tobytes() for w in work)
        assert all(w.tobytes() == work[0].tobytes() for w in work)
    elif kind == "reduce_scatter":
        start, stop = chunks[0]
        assert work[0][start : min(stop, few)].tobytes() == wanted[start : min(stop, few)].tobytes()
    else:
        gathered = np.concatenate([arrays[r][s:e] for r, (s, e) in enumerate(chunks)])
        assert all((w == gathered).all() for w in work)


@settings(max_examples=30, deadline=None)
@given(size=st.integers(2, 6), elements=st.integers(1, 200_000), root=st.integers(0, 5), seed=st.integers(0, 100))
def test_a_broadcast_reaches_all(size: int, elements: int, root: int, seed: int) -> None:
    root %= size
    work = [np.full(elements, rank, dtype=np.uint8) for rank in range(size)]
    operations = [broadcast_operation(memoryview(w), root, RingPosition(rank, size, 4)) for rank, w in enumerate(work)]
    play(operations, np.random.default_rng(seed), again=0.3)
    assert all((w == root).all() for w in work)


@given(elements=st.integers(1, 10**9), item=st.sampled_from([1, 2, 4, 8]), size=st.integers(1, 64))
def test_chunks_cover_the_buffer_once(elements: int, item: int, size: int) -> None:
    chunks = gloo_chunks(elements, item, size)
    edges = [edge for chunk in chunks for edge in chunk]
    assert edges == sorted(edges)
    assert edges[0] == 0
    assert edges[-1] == elements
    assert all(a[1] == b[0] for a, b in itertools.pairwise(chunks))


def test_a_piece_of_another_length_is_an_error() -> None:
    array = np.zeros(100, dtype=np.float32)
    operation = ring_operation(
        "allreduce",
        memoryview(array.view(np.uint8)),
        4,
        gloo_chunks(100, 4, 2),
        RingPosition(0, 2, 4),
        reducer(array, "sum"),
    )
    with pytest.raises(ValueError, match="were expected"):
        operation.take(0, memoryview(b"abc"))


def test_what_cannot_be_split_or_reduced_is_said() -> None:
    with pytest.raises(BadRequest, match="pad the buffer"):
        even_chunks(7, 2)
    with pytest.raises(BadRequest, match="there are sum"):
        reducer(np.zeros(1), "mean")
    assert piece_bytes(10, 16, 4) % 16 == 0
