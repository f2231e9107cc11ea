"""What is a constant, and what its context is."""

from __future__ import annotations

import pytest

from verici.model import Constant, is_below, version_key
from verici.tokens import JOINED, MOST_CHARACTERS, MOST_CONSTANTS, constants_of, decode


def pairs(path: str, text: str) -> list[tuple[str, str]]:
    return [(one.name, one.value) for one in constants_of(path, text)]


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("a.rb", "import Tweet V1.0\nm = rndMsg(1)\n", [("import Tweet", "1.0"), ("m rndMsg", "1")]),
        (".travis.yml", "rvm:\n- 2.7.1\n- jruby-9.1\n", [("rvm", "2.7.1"), ("rvm jruby", "9.1")]),
        ("ci.yml", "jobs:\n  a:\n    runs-on: ubuntu-22.04\n", [("a runs-on ubuntu", "22.04")]),
        ("ci.yml", "    python-version: '3.13-dev'\n", [("python-version", "3.13-dev")]),
        ("Gemfile.lock", "    rack (~> 1.6, >= 1.6.1)\n", [("rack", "1.6"), ("rack", "1.6.1")]),
        ("Cargo.lock", '[[package]]\nname = "serde"\nversion = "1.0.3"\n', [("serde version", "1.0.3")]),
        ("pom.xml",
         "<a>\n <artifactId>junit</artifactId>\n <version>4.12</version>\n</a>\n", [("junit version", "4.12")]),
        ("package-lock.json",
         '{\n "node_modules/x": {\n  "version": "4.17.21"\n }\n}\n', [("node_modules/x version", "4.17.21")]),
        ("job.sbatch", "#SBATCH --nodes=4\ntorchrun --nproc-per-node 8 t.py --lr 1e-4 # 7\n",
         [("--nodes", "4"), ("--nproc-per-node", "8"), ("--lr", "1e-4")]),
        ("rust-toolchain", "nightly-2019-02-22\n", [("nightly", "2019.02.22")]),
        ("Dockerfile",
         "FROM python:3.8-slim\nRUN get jdk-8u222\n", [("FROM python slim", "3.8"), ("RUN get jdk", "8u222")]),
        ("tox.ini", "[testenv]\nenvlist = py35\n", [("testenv envlist py", "35")]),
        ("requirements.txt", "torch==2.13.0\n", [("torch", "2.13.0")]),
        ("x.toml", "big = 1_000_000\n", [("big", "1000000")]),
    ],
)  # fmt: skip
def test_constants_of_common_files(path: str, text: str, expected: list[tuple[str, str]]) -> None:
    assert pairs(path, text) == expected


@pytest.mark.parametrize(
    "line",
    ["see https://example.org/v2.3/x", "2019-02-22", "127.0.0.1", "10.0.0.7", "deadbeef42", "# all 7 of it",
     "sha256-" + "a1" * 20, "123e4567-e89b-12d3-a456-426614174000", "x86_64 utf-8"],
)  # fmt: skip
def test_other_shapes_are_no_constants(line: str) -> None:
    assert pairs("a.txt", line + "\n") == []


def test_the_version_beside_a_pinned_hash_is_kept() -> None:
    line = f"      - uses: actions/checkout@{'44c2b7a8' * 5} # v4.1.5\n"
    assert pairs("ci.yml", "steps:\n" + line) == [("steps uses actions checkout", "4.1.5")]


def test_equal_contexts_are_numbered_and_lines_are_right() -> None:
    assert constants_of("a.txt", "x 1\n\nx 2\n") == (Constant(1, "x", 0, "1"), Constant(3, "x", 1, "2"))


def test_versions_are_joined_from_their_parts() -> None:
    text = "MAJOR = 3\nMINOR = 4\nPATCH = 35\n"
    assert constants_of("version.rb", text)[-1] == Constant(3, JOINED, 0, "3.4.35")
    assert constants_of("version.rb", text + "PATCH = 36\n")[-1].name != JOINED


def test_binary_huge_and_badly_encoded_files_are_bounded() -> None:
    assert decode(b"a 1\0b") is None
    assert decode(b"1" * (3 << 20)) is None
    assert pairs("a.txt", decode("größe 3\n".encode("latin-1")) or "") != []
    assert len(constants_of("a.txt", "1 " * 3_000_000)) <= MOST_CHARACTERS
    assert len(constants_of("a.txt", "a 1\n" * (MOST_CONSTANTS + 9))) == MOST_CONSTANTS


def test_versions_are_ordered_by_parts_and_decimals_by_size() -> None:
    assert sorted(["3.10", "3.4", "3.4.1", "3.4.rc1", "3.9"], key=version_key) == [
        "3.4.rc1",
        "3.4",
        "3.4.1",
        "3.9",
        "3.10",
    ]
    assert is_below("0.05", "0.1", "decimal")
    assert is_below("1e-4", "1e-3", "decimal")
