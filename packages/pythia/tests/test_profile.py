"""Automaton, expressions, bounds, templates, drift and the profile file."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pythia import pathregex
from pythia.errors import BadFile
from pythia.estimates import END, Automaton, Lengths, rank
from pythia.profile import Profiles, read_log
from pythia.records import Identifiers, Step
from pythia.templates import Template, pieces
from pythia.workflow import arrivals, draw, read_workflow

PATHS = st.lists(st.lists(st.sampled_from("abcde"), min_size=1, max_size=8).map(tuple), min_size=1, max_size=12)


def feed(profiles: Profiles, paths, *, workflow: str = "w", origin: float = 0.0) -> list[str]:
    """Send whole runs through profiles; return what was noticed, and after how many runs."""
    noticed = []
    for i, path in enumerate(paths):
        for j, (role, tokens) in enumerate(path):
            ids = Identifiers(workflow, f"{origin}-{i}", role, j == len(path) - 1)
            run, place, _ = profiles.begin(ids, "", origin + 10 * i + j, 0.01)
            profiles.end(run, place, Step(workflow, f"{i}", role, 0.0, tokens), origin + 10 * i + j + 0.5)
        noticed += [reason for _, reason in profiles.changes[len(noticed) :]]
    return noticed


def runs(name: str, count: int, seed: int):
    rng = random.Random(seed)
    workflow = read_workflow(name)
    return [[(s.role, s.output) for s in draw(workflow, str(i), 0.0, rng).steps] for i in range(count)]


def longest(node: pathregex.Node) -> int:
    """Return the length of the longest accepted path."""
    if node.role:
        return node.high
    return node.high * sum(longest(part) for part in node.parts)


def draw_path(node: pathregex.Node, rng: random.Random) -> tuple[str, ...]:
    """Return a random accepted path."""
    found: tuple[str, ...] = ()
    for _ in range(rng.randint(node.low, node.high)):
        if node.role:
            found += (node.role,)
        else:
            for part in node.parts:
                found += draw_path(part, rng)
    return found


@given(PATHS)
@settings(max_examples=300, deadline=None)
def test_the_expression_accepts_every_learned_path_and_is_bounded(paths):
    node = pathregex.learn(paths)
    assert all(pathregex.accepts(node, path) for path in paths)
    assert longest(node) < 10**6
    assert not pathregex.accepts(node, ("f",))


@given(PATHS, st.integers(0, 1000))
@settings(max_examples=100, deadline=None)
def test_paths_drawn_from_an_expression_give_an_expression_that_accepts_them(paths, seed):
    rng = random.Random(seed)
    node = pathregex.learn(paths)
    drawn = [p for p in (draw_path(node, rng) for _ in range(20)) if p]
    assert all(pathregex.accepts(node, p) for p in drawn)
    if drawn:
        automaton = Automaton()
        for path in drawn:
            automaton.learn([(role, 1) for role in path])
        again = pathregex.learn(drawn)
        for path in drawn:
            assert pathregex.accepts(again, path)
            assert automaton.likelihood(path) > -5


def slow_accepts(node: pathregex.Node, path: tuple[str, ...]) -> bool:
    """Enumerate the language; only for small expressions."""

    def words(n: pathregex.Node) -> set[tuple[str, ...]]:
        if n.role:
            once = {(n.role,)}
        else:
            once = {()}
            for part in n.parts:
                once = {a + b for a in once for b in words(part) if len(a + b) <= len(path)}
        return {
            sum(c, ())
            for k in range(n.low, min(n.high, len(path) + n.low) + 1)
            for c in itertools.product(once, repeat=k)
            if len(sum(c, ())) <= len(path)
        }

    return path in words(node)


@given(
    st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map(tuple), min_size=1, max_size=3),
    st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map(tuple),
)
@settings(max_examples=60, deadline=None)
def test_acceptance_agrees_with_enumerating_the_language(paths, path):
    node = pathregex.learn(paths)
    assert pathregex.accepts(node, path) == slow_accepts(node, path)


@pytest.mark.parametrize(
    ("name", "text"),
    [("coding", "planner -> explorer{3,5} -> (engineer -> reviewer){1,3} -> verifier"),
     ("research", "lead -> searcher{2,6} -> writer -> checker?"), ("reviews", "author -> review{3}")],
)  # fmt: skip
def test_shipped_workflows_are_found_again_and_cover_later_runs(name, text):
    learned, later = runs(name, 100, 1), runs(name, 400, 2)
    node = pathregex.learn(pathregex.above_cut(Counter(tuple(r for r, _ in run) for run in learned), 0.05, 0.02))
    assert str(node) == text
    covered = sum(pathregex.accepts(node, [r for r, _ in run]) for run in later)
    assert covered >= 0.95 * len(later)


def test_exactly_three_reviews_stay_three():
    automaton = Automaton()
    for run in runs("reviews", 100, 1):
        automaton.learn(run)
    assert [automaton.remaining(("review", n))[1] for n in (1, 2, 3)] == [2, 1, 0]
    assert automaton.successors(("review", 3)) == [(END, 1.0)]
    assert automaton.forecast(("author", 1), 8)["review"] == (3.0, 1.0)


def test_the_rank_is_the_finite_sample_one():
    assert [rank(n, 0.05) for n in (18, 19, 20, 99)] == [None, 19, 20, 95]
    assert rank(78, 0.05 / 4) is None
    assert rank(79, 0.05 / 4) == 79


def test_bounds_cover_their_nominal_share_in_the_mean_over_200_roles():
    rng = np.random.default_rng(0)
    draws = {
        "lognormal": lambda n: rng.lognormal(4, 1.0, n), "exponential": lambda n: rng.exponential(100, n),
        "bimodal": lambda n: np.where(rng.random(n) < 0.2, rng.normal(900, 50, n), rng.normal(60, 10, n)),
        "heavy tail": lambda n: (rng.pareto(1.1, n) + 1) * 20,
    }  # fmt: skip
    for name, draw_ in draws.items():
        for alpha in (0.05, 0.01):
            for n in (100, 300):
                found = []
                for _ in range(200):
                    lengths = Lengths()
                    for value in draw_(n):
                        lengths.add(int(max(1, value)))
                    bound = lengths.bound(alpha)
                    found.append((draw_(2000) <= bound).mean() if bound is not None else 1.0)
                assert np.mean(found) >= 1 - alpha - 0.01, (name, alpha, n)


def test_lengths_forget_what_is_old():
    lengths = Lengths()
    for i in range(5000):
        lengths.add(10 if i < 2500 else 1000)
    assert lengths.bound(0.05) == 1000
    assert lengths.mean == 1000


def test_a_changed_workflow_is_noticed_within_20_runs_and_learned_again():
    profiles = Profiles()
    assert feed(profiles, runs("coding", 150, 1)) == []
    changed = [[*run[:-1], ("tester", 30), *run[-1:]] for run in runs("coding", 60, 2)]
    for count in range(1, 21):
        if feed(profiles, changed[count - 1 : count], origin=1e5 * count):
            break
    assert profiles.changes, "not noticed within 20 runs"
    assert profiles.known["", "w"].thin
    feed(profiles, changed[count:], origin=1e9)
    assert "tester" in profiles.known["", "w"].text


def test_longer_answers_are_noticed_within_20_runs():
    profiles = Profiles()
    feed(profiles, runs("coding", 150, 1))
    longer = [[(role, 3 * tokens) for role, tokens in run] for run in runs("coding", 20, 2)]
    feed(profiles, longer, origin=1e6)
    assert "longer" in profiles.changes[0][1]


def test_little_history_and_unknown_roles_are_served_reactively():
    profiles = Profiles()
    feed(profiles, runs("coding", 10, 1))
    _, _, thin = profiles.begin(Identifiers("w", "x", "planner"), "", 1e6, 0.01)
    assert (thin.trusted, thin.bound, thin.on_path) == (False, None, False)
    feed(profiles, runs("coding", 40, 2), origin=1e7)
    _, _, known = profiles.begin(Identifiers("w", "y", "planner"), "", 1e8, 0.1)
    assert known.trusted
    assert known.next_role == "explorer"
    _, _, odd = profiles.begin(Identifiers("w", "y", "nobody"), "", 1e8, 0.1)
    assert (odd.on_path, odd.trusted) == (False, False)


def test_templates_find_constant_lines_and_where_the_rest_comes_from():
    salt = b"s" * 16
    template = Template()
    for i in range(10):
        plan = f"step one of {i}\nstep two of {i}"
        prompt = pieces(["You are the engineer.\nFollow the plan.", plan, f"and mind {i}"], salt)
        seen = {piece: "planner.answer" for piece, _ in pieces([plan], salt)}
        template.learn(f"run{i}", prompt, seen)
    assert 0.4 < template.constant_share < 0.7
    assert list(template.describe()) == ["planner.answer", "new"]
    assert pieces(["a"], salt) != pieces(["a"], b"t" * 16)


def test_a_profile_file_keeps_everything_and_a_bad_one_is_refused(tmp_path):
    profiles = Profiles()
    feed(profiles, runs("coding", 60, 1))
    profiles.save(tmp_path / "p.bin")
    assert (tmp_path / "p.bin").stat().st_mode & 0o077 == 0
    again = Profiles.load(tmp_path / "p.bin")
    one, other = profiles.known["", "w"], again.known["", "w"]
    assert (one.text, one.runs, one.trust, one.paths) == (other.text, other.runs, other.trust, other.paths)
    assert one.automaton.edges == other.automaton.edges
    assert [x.bound(0.05) for x in one.lengths.values()] == [x.bound(0.05) for x in other.lengths.values()]
    (tmp_path / "p.bin").write_bytes(b"nonsense")
    with pytest.raises(BadFile, match="move it away"):
        Profiles.load(tmp_path / "p.bin")


def test_a_malformed_log_names_its_line(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text(
        '{"workflow_type_id":"w","workflow_id":"r","agent_id":"a","time_s":1,"output_tokens":3}\n{"time_s": -1}\n'
    )
    with pytest.raises(BadFile, match="line 2"):
        list(read_log(path))


def test_open_runs_are_bounded_and_idle_ones_end():
    profiles = Profiles(idle_s=5)
    feed(profiles, [[("a", 1)]])
    run, place, _ = profiles.begin(Identifiers("w", "open", "a"), "", 0.0, 0.01)
    assert profiles.expire(100.0) == []  # its request is still running
    profiles.end(run, place, Step("w", "open", "a", 0.0, 3), 100.0)
    assert profiles.expire(104.0) == []
    assert profiles.expire(106.0) == [run]


def test_arrivals_are_the_same_for_the_same_seed():
    mixture = [(read_workflow("coding"), 0.5), (read_workflow("support"), 0.5)]
    assert arrivals(mixture, 2.0, 20.0, 3) == arrivals(mixture, 2.0, 20.0, 3)
