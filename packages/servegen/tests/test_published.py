from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from servegen.errors import BadFile
from servegen.pool import GAMMA, WEIBULL
from servegen.published import import_published


def layout(folder: Path, trace: str, dataset: object) -> Path:
    (folder / "chunk-0-trace.csv").write_text(trace)
    (folder / "chunk-0-dataset.json").write_text(json.dumps(dataset))
    return folder


TRACE = "0,2.5,1.4,Gamma,0.51,0.78\n600,0.0,,,,\n1200,1.5,2.0,Weibull,0.6,0.44\n"
DATASET = {
    "0": {"input_tokens": "{10: 0.25, 3: 0.75}", "output_tokens": "{7: 1.0}"},
    "21600": {"input_tokens": "{}", "output_tokens": "{}"},
}


def test_the_published_layout_is_imported(tmp_path: Path) -> None:
    layout(tmp_path, TRACE, DATASET)
    (tmp_path / "chunk-1-trace.csv").write_text("0,1.0,1.0,Gamma,1.0,1.0\n")
    pool = import_published(tmp_path)
    assert pool.clients == ("0", "1")
    assert pool.rate[0].tolist() == [2.5, 0.0, 1.5]
    assert pool.process[0].tolist()[::2] == [GAMMA, WEIBULL]
    entry = pool.lengths["input_tokens"][0]
    assert entry is not None
    assert entry.histograms[0].values.tolist() == [3.0, 10.0]
    assert np.allclose(entry.histograms[0].cumulative, [0.75, 1.0])
    assert len(entry.histograms) == 1
    assert pool.lengths["input_tokens"][1] is None
    assert pool.without_lengths()[0] == 1


@pytest.mark.parametrize(
    "text",
    [
        "__import__('pathlib').Path('evaluated').touch()",
        "{1: __import__('os').getpid()}",
        "{1: 0.5, 2: }",
        "{1: 1.0} {2: 1.0}",
        "{-1: 1.0}",
        "{1: nan}",
        "{" + "1:" * 10_000,
        17,
        "{1: 1e999}",
    ],
)
def test_text_that_is_no_histogram_is_refused_and_never_evaluated(
    tmp_path: Path, text: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    layout(tmp_path, TRACE, {"0": {"input_tokens": text, "output_tokens": "{7: 1.0}"}})
    with pytest.raises(BadFile) as caught:
        import_published(tmp_path)
    assert caught.value.field == "0.input_tokens"
    assert caught.value.path.name == "chunk-0-dataset.json"
    assert not (tmp_path / "evaluated").exists()


@pytest.mark.parametrize(
    ("trace", "row", "field"),
    [
        ("0,1.0,1.0,Gamma,1.0\n", 1, None),
        ("0,1.0,1.0,Gamma,1.0,1.0\n0,1.0,1.0,Gamma,1.0,1.0\n", 2, "start"),
        ("0,x,1.0,Gamma,1.0,1.0\n", 1, "rate"),
        ("0,1.0,-1.0,Gamma,1.0,1.0\n", 1, "cv"),
        ("0,1.0,1.0,Cauchy,1.0,1.0\n", 1, "process"),
    ],
)
def test_a_bad_trace_is_refused_with_row_and_field(tmp_path: Path, trace: str, row: int, field: str | None) -> None:
    layout(tmp_path, trace, DATASET)
    with pytest.raises(BadFile) as caught:
        import_published(tmp_path)
    assert (caught.value.row, caught.value.field) == (row, field)


def test_deep_json_is_refused(tmp_path: Path) -> None:
    layout(tmp_path, TRACE, {})
    (tmp_path / "chunk-0-dataset.json").write_text("[" * 100_000)
    with pytest.raises(BadFile, match="Expected `object`"):
        import_published(tmp_path)
