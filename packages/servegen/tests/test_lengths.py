from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from made import pool_of, requests
from servegen.errors import BadRequest
from servegen.lengths import draw_lengths, inverse, parse_coupling
from servegen.pool import Histogram, Pool

WIDE = {
    "input_tokens": Histogram.of(np.arange(1.0, 2001.0), np.ones(2000)),
    "output_tokens": Histogram.of(np.arange(1.0, 2001.0), np.linspace(2, 1, 2000)),
}


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=30), st.floats(0, 1, exclude_max=True))
def test_the_inverse_is_the_first_value_whose_cumulative_probability_exceeds_u(weights: list[float], u: float) -> None:
    histogram = Histogram.of(np.arange(float(len(weights))), np.array(weights))
    slow = next(v for v, c in zip(histogram.values, histogram.cumulative, strict=True) if c > u)
    assert inverse(histogram, np.array([u]))[0] == slow


def test_draws_follow_the_histogram() -> None:
    drawn = draw_lengths(WIDE, 50_000, np.random.default_rng(0), ("independent", 0.0))
    assert stats.kstest(drawn["input_tokens"], lambda x: np.clip(x / 2000, 0, 1)).statistic < 0.01
    assert drawn["output_tokens"].mean() == pytest.approx(WIDE["output_tokens"].mean, rel=0.01)


@pytest.mark.parametrize(
    ("text", "expected"), [("independent", 0.0), ("rank:0.6", 0.6), ("rank:-0.3", -0.3), ("comonotone", 1.0)]
)
def test_input_and_output_have_the_rank_correlation_of_the_setting(text: str, expected: float) -> None:
    drawn = draw_lengths(WIDE, 20_000, np.random.default_rng(1), parse_coupling(text))
    assert stats.spearmanr(drawn["input_tokens"], drawn["output_tokens"]).statistic == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("text", ["rank", "rank:2", "rank:x", "pairwise", "independent:1"])
def test_an_unknown_coupling_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="use independent, comonotone or rank:RHO"):
        parse_coupling(text)


def test_reasoning_and_answer_add_up_to_the_output(reasoning: Pool) -> None:
    table = requests(reasoning, hours=0.5, seed=1, rate=5.0, start_hour=12)
    thought, output = table["reasoning_tokens"].to_numpy(), table["output_tokens"].to_numpy()
    assert (thought <= output).all() and (thought >= 0).all()
    assert (thought / output).std() > 0.1  # the split differs widely between requests


def test_a_multimodal_input_is_its_text_and_its_items(multimodal: Pool) -> None:
    table = requests(multimodal, hours=0.5, seed=1, rate=5.0, start_hour=12)
    items = sum(np.array([sum(row) for row in table[f"{m}_tokens"].to_pylist()]) for m in ("image", "audio", "video"))
    assert (table["input_tokens"].to_numpy() == table["text_tokens"].to_numpy() + items).mean() > 0.999
    assert max(len(row) for row in table["image_tokens"].to_pylist()) > 1


def test_one_clients_window_uses_the_last_histogram_that_starts_before_it() -> None:
    pool = pool_of([[5.0] * 72])
    assert pool.lengths["input_tokens"][0] is not None
    entry = pool.lengths["input_tokens"][0]
    later = Histogram.of(np.array([9999.0]), np.ones(1))
    entry = type(entry)(np.array([0, 21_600]), (entry.histograms[0], later))
    pool.lengths["input_tokens"] = (entry,)  # type: ignore[index]
    table = requests(pool, hours=12, seed=0, rate=0.05)
    late = table["time_us"].to_numpy() >= 21_600_000_000
    assert (table["input_tokens"].to_numpy()[late] == 9999).all()
    assert (table["input_tokens"].to_numpy()[~late] < 9999).all()
