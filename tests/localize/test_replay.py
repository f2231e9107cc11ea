"""Windows run again from their event graph, and blame that goes to where a delay began."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from eroica.localize.arrivals import Arrivals, read_arrivals
from eroica.localize.fleet import Fleet, build_fleet
from eroica.localize.simulate import _replayed, simulated_gain
from eroica.model.pattern import CollectiveRecord, WorkerPattern
from eroica.model.series import decode_series, encode_series
from eroica.model.worker import ProcessGroup
from eroica.settings import Settings
from support.pipelines import Played, Step, patterns_of_played, pipeline_programs, play

ITERATIONS = 12


def replayed_gain(fleet: Fleet, less_WI: NDArray[np.float64]) -> float | None:
    """Share of the time saved with less own time; None where the window cannot be replayed."""
    now = float(fleet.iteration_us.mean(axis=0).sum())
    return 1.0 - float(_replayed(fleet, fleet.replay, less_WI, None).sum()) / now if fleet.replay is not None else None


def judged(
    programs: Sequence[Sequence[Step]],
    groups: Sequence[ProcessGroup],
    starts: Sequence[float] = (),
    buffered: bool = True,
    **how: object,
) -> tuple[Fleet, Arrivals, list[Played]]:
    played = play(programs, groups, starts, buffered)
    fleet = build_fleet(patterns_of_played(played, groups, **how), Settings(one_off_fraction=0.0))
    arrivals = read_arrivals(fleet)
    return msgspec.structs.replace(fleet, replay=arrivals.replay), arrivals, played


def pipeline(*work_us: tuple[float, ...], starts: Sequence[float] = (), microbatches: int = 4) -> tuple:
    programs, groups = pipeline_programs(work_us, ITERATIONS, microbatches)
    return judged(programs, groups, starts)


def everybody(world: int) -> ProcessGroup:
    return ProcessGroup(name="0", description="default_pg", ranks=tuple(range(world)), backend="gloo")


def mean_us(played: Sequence[Played]) -> float:
    return float(np.mean([one.iteration_us for one in played]))


SLOW = 9_000.0
FAST = 3_000.0


def direct(arrivals: Arrivals) -> np.ndarray:
    """Waiting of others for each worker, before it is passed on."""
    workers = arrivals.waited_us.shape[0]
    return np.bincount(arrivals.direct.on, weights=arrivals.direct.wait_us, minlength=workers)


def added_blame(work_us: Sequence[tuple[float, ...]]) -> tuple[np.ndarray, np.ndarray]:
    """Shares of the waiting that a slow stage adds: directly, and where it begins.

    A pipeline that nobody slows down waits, too, while it fills and drains: each stage is blamed for its part, 9 to 19
    ms here. So a slow worker never has all of the blame; it must have all that comes on top.
    """
    slow = pipeline(*work_us)[1]
    healthy = pipeline(*[(FAST,) * len(stages) for stages in work_us])[1]
    total = float(slow.waited_us.sum() - healthy.waited_us.sum())
    blamed = slow.blamed_us - healthy.blamed_us
    return (direct(slow) - direct(healthy)) / total, blamed.sum(axis=1) / total


def test_a_slow_stage_of_one_replica_is_blamed_alone() -> None:
    at_once, blamed = added_blame(((SLOW, FAST), (FAST, FAST)))
    assert at_once[1:3].sum() > 0.3
    assert blamed == pytest.approx([1, 0, 0, 0], abs=0.01)


@pytest.mark.parametrize("starts", [(), (0.0, 40_000.0, 3_000.0, 17_000.0)])
def test_a_replay_with_nothing_removed_takes_as_long_as_the_window(starts: Sequence[float]) -> None:
    fleet, arrivals, _ = pipeline((SLOW, FAST), (FAST, FAST), starts=starts)
    assert arrivals.replay is not None
    assert arrivals.replay.error < 0.02
    assert arrivals.replay.iteration_I[3:] == pytest.approx(fleet.iteration_us.mean(axis=0)[3:], rel=0.01)


def test_the_gain_of_a_slow_stage_is_what_the_job_gains_without_it() -> None:
    fleet, _, played = pipeline((SLOW, FAST), (FAST, FAST))
    _, _, healthy = pipeline((FAST, FAST), (FAST, FAST))
    truth = 1 - mean_us(healthy) / mean_us(played)
    removed = np.zeros_like(fleet.iteration_us)
    removed[0] = 4 * 3 * (SLOW - FAST)
    assert simulated_gain(fleet, removed) == pytest.approx(truth, abs=0.02)


@pytest.mark.parametrize("buffered", [True, False])
def test_a_sender_waits_for_a_late_receiver_where_sends_are_not_buffered(buffered: bool) -> None:
    """The second stage sends two gradients; the first one works long on each before it asks for the next."""

    def both(long_us: float) -> tuple[Fleet, list[Played]]:
        first = [Step("work", FAST), Step("send", 100.0, "0", 1)]
        first += [Step("recv", 100.0, "0", 1), Step("work", long_us)] * 2
        second = [Step("recv", 100.0, "0", 0), *[Step("work", FAST), Step("send", 100.0, "0", 0)] * 2]
        programs = [[*steps, Step("iteration")] * ITERATIONS for steps in (first, second)]
        fleet, _, played = judged(programs, [everybody(2)], buffered=buffered)
        return fleet, played

    fleet, played = both(40_000.0)
    truth = 1 - mean_us(both(FAST)[1]) / mean_us(played)
    removed = np.zeros_like(fleet.iteration_us)
    removed[0] = 2 * (40_000.0 - FAST)
    assert fleet.replay is not None
    assert simulated_gain(fleet, removed) == pytest.approx(truth, abs=0.02)


def test_a_server_whose_answer_comes_in_the_clients_next_iteration_gains_what_it_works() -> None:
    """A server's iteration begins with receives, its clients' with its answer: the same iterations pair in a circle."""
    clients = (1, 2)

    def served(server_us: Sequence[float]) -> tuple[Fleet, Arrivals, list[Played]]:
        answers = [Step("send", 100.0, "0", one) for one in clients]
        asks = [Step("recv", 100.0, "0", one) for one in clients]
        server = [*answers, Step("iteration")]
        for own_us in server_us:
            server += [*asks, Step("work", own_us), *answers, Step("iteration")]
        client = [Step("recv", 100.0, "0", 0), Step("work", 20_000.0), Step("send", 100.0, "0", 0), Step("iteration")]
        played = play([server, *[client * len(server_us)] * 2], [everybody(3)])
        inside = [
            one._replace(
                runs=[run._replace(iteration=run.iteration - 1) for run in one.runs if run.iteration],
                edges=one.edges[1:],
            )
            for one in played
        ]
        fleet = build_fleet(patterns_of_played(inside, [everybody(3)]), Settings(one_off_fraction=0.0))
        arrivals = read_arrivals(fleet)
        return msgspec.structs.replace(fleet, replay=arrivals.replay), arrivals, inside

    varied = np.random.default_rng(1).normal(1.0, 0.1, 4 * ITERATIONS)
    fleet, arrivals, played = served(30_000.0 * varied)
    truth = 1 - mean_us(served(5_000.0 * varied)[2]) / mean_us(played)
    removed = np.zeros_like(fleet.iteration_us)
    removed[0] = 25_000.0
    assert arrivals.replay is not None
    assert simulated_gain(fleet, removed) == pytest.approx(truth, abs=0.05)


def buckets(works: Sequence[float], transfer_us: float, count: int = 4) -> tuple:
    """Gradients in buckets beside the backward pass, waited for at its end."""
    programs = []
    for work in works:
        backward = [
            step
            for _ in range(count)
            for step in (Step("work", work / count), Step("start", transfer_us, "0", kind="all_reduce"))
        ]
        programs.append([*backward, Step("finish"), Step("work", 2_000.0), Step("iteration")] * ITERATIONS)
    return judged(programs, [everybody(len(works))])


def rooted(root_us: float) -> tuple:
    programs = [
        [Step("work", own), Step("broadcast", 300.0, "0", 0), Step("iteration")] * ITERATIONS
        for own in (root_us, 5_000.0, 5_000.0)
    ]
    played = play(programs, [everybody(3)])
    fleet = build_fleet(patterns_of_played(played, [everybody(3)]), Settings(one_off_fraction=0.0))
    return fleet, read_arrivals(fleet), played


def test_a_late_root_is_blamed_for_its_broadcast_though_no_record_names_it() -> None:
    fleet, arrivals, played = rooted(15_000.0)
    assert arrivals.blame_share([0]) == 1
    assert arrivals.waited_us.sum() == pytest.approx(2 * ITERATIONS * 10_000.0, rel=0.05)
    removed = np.zeros_like(fleet.iteration_us)
    removed[0] = 10_000.0
    truth = 1 - mean_us(rooted(5_000.0)[2]) / mean_us(played)
    assert arrivals.replay is not None, arrivals.notes
    assert simulated_gain(msgspec.structs.replace(fleet, replay=arrivals.replay), removed) == pytest.approx(
        truth, abs=0.02
    )


def test_waiting_for_somebody_unknown_is_nobodys_fault() -> None:
    """Worker 1 waits in communication that has no record, and so comes last: whom it waited for is not known."""
    programs = [
        [Step("work", 5_000.0), Step("all_reduce", 100.0, "0"), Step("iteration")] * ITERATIONS,
        [Step("work", 25_000.0), Step("all_reduce", 100.0, "0"), Step("iteration")] * ITERATIONS,
    ]
    played = play(programs, [everybody(2)])
    patterns = patterns_of_played(played, [everybody(2)])
    waits = encode_series(np.full(ITERATIONS, 20_100.0, dtype=np.float32), exact=True)
    unknown = [patterns[0], msgspec.structs.replace(patterns[1], wait_us=waits)]
    own = read_arrivals(build_fleet(patterns, Settings(one_off_fraction=0.0)))
    other = read_arrivals(build_fleet(unknown, Settings(one_off_fraction=0.0)))
    assert own.blame_share([1]) == 1
    assert other.blamed_us.sum() < 0.05 * other.waited_us.sum()


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10_000), st.integers(1, 3), st.integers(2, 3), st.integers(1, 3), st.booleans())
def test_blame_and_what_is_withheld_are_what_was_waited(
    seed: int, replicas: int, stages: int, microbatches: int, recorded: bool
) -> None:
    noise = np.random.default_rng(seed)
    work = [tuple(noise.exponential(5_000.0, stages).tolist()) for _ in range(replicas)]
    programs, groups = pipeline_programs(work, 5, microbatches)
    jittered = [
        [step._replace(time_us=step.time_us * noise.uniform(0.7, 1.3)) if step.does == "work" else step for step in one]
        for one in programs
    ]
    starts = noise.uniform(0, 30_000, len(programs)).tolist()
    fleet, arrivals, _ = judged(jittered, groups, starts, recorded=recorded)
    handed = float(arrivals.blamed_us.sum() + arrivals.withheld_us)
    assert handed == pytest.approx(float(arrivals.waited_us.sum()), rel=1e-9, abs=1e-3)
    assert (arrivals.blamed_us >= -1e-6).all()
    assert arrivals.withheld_us >= 0
    if arrivals.replay is not None:
        assert np.isfinite(arrivals.replay.iteration_I).all()
        nothing = np.zeros_like(fleet.iteration_us)
        assert simulated_gain(fleet, nothing) == 0


def test_patterns_without_ends_are_simulated_from_busy_times_and_blamed_directly() -> None:
    programs, groups = pipeline_programs(((SLOW, FAST), (FAST, FAST)), ITERATIONS)
    patterns = [
        msgspec.structs.replace(
            one, collectives=tuple(msgspec.structs.replace(record, end_us=b"") for record in one.collectives)
        )
        for one in patterns_of_played(play(programs, groups), groups)
    ]
    arrivals = read_arrivals(build_fleet(patterns, Settings(one_off_fraction=0.0)))
    assert arrivals.replay is None
    assert arrivals.blamed_us.sum(axis=1) == pytest.approx(direct(arrivals))


def renamed(pattern: WorkerPattern, names: dict[str, str]) -> WorkerPattern:
    records = tuple(msgspec.structs.replace(one, group=names[one.group]) for one in pattern.collectives)
    return msgspec.structs.replace(pattern, collectives=records)


def fallen_back(patterns: Sequence[WorkerPattern]) -> tuple[str, ...]:
    """Why the window cannot be replayed; gains come from busy times then."""
    fleet = build_fleet(patterns, Settings(one_off_fraction=0.0))
    arrivals = read_arrivals(fleet)
    assert arrivals.replay is None
    assert replayed_gain(fleet, np.ones_like(fleet.iteration_us)) is None
    return arrivals.notes


def test_a_window_whose_workers_would_wait_in_a_circle_says_so() -> None:
    """Worker 1 is said to come to the two groups in the other order."""
    groups = [ProcessGroup(name=name, ranks=(0, 1), backend="gloo") for name in "ab"]
    steps = [step for name in "ab" for step in (Step("work", 5_000.0), Step("all_reduce", 100.0, name))]
    patterns = patterns_of_played(play([[*steps, Step("iteration")] * ITERATIONS] * 2, groups), groups)
    crossed = [patterns[0], renamed(patterns[1], {"a": "b", "b": "a"})]
    (note,) = fallen_back(crossed)
    assert note == "the order of the collectives cannot be replayed: gains are estimated from busy times"


def test_a_window_that_a_replay_misses_says_by_how_much() -> None:
    """Worker 1's clock runs 15 % too fast: two workers in step cannot take so different times."""
    programs = [
        [Step("work", work), Step("all_reduce", 100.0, "0"), Step("iteration")] * ITERATIONS for work in (9e3, 1e4)
    ]
    honest, fast = patterns_of_played(play(programs, [everybody(2)]), [everybody(2)])

    def faster(series: bytes, kind: type) -> bytes:
        return encode_series((decode_series(series, kind) * 1.15).astype(kind), exact=True)

    record = fast.collectives[0]
    record = msgspec.structs.replace(record, end_us=faster(record.end_us, np.float64))
    fast = msgspec.structs.replace(fast, iteration_us=faster(fast.iteration_us, np.float32), collectives=(record,))
    (note,) = fallen_back([honest, fast])
    assert note.startswith("a replay of the window misses its duration by ")
    assert " %: gains are estimated from busy times" in note


def cut_short(pattern: WorkerPattern, executions: int) -> WorkerPattern:
    """The pattern with the last so many executions of each record."""

    def cut(record: CollectiveRecord) -> CollectiveRecord:
        names = {"sequence": np.int64, "iteration": np.int32, "duration_us": np.float32, "critical_us": np.float32}
        names |= {"elements": np.int64, "peers": np.int32, "end_us": np.float64}
        kept = {name: decode_series(getattr(record, name), kind)[-executions:] for name, kind in names.items()}
        encoded = {name: encode_series(values, exact=True) for name, values in kept.items()}
        left = record.executions - executions
        return msgspec.structs.replace(record, executions=executions, dropped=left, **encoded)

    records = tuple(one if one.executions <= executions else cut(one) for one in pattern.collectives)
    return msgspec.structs.replace(pattern, collectives=records)


def test_receives_of_which_only_the_last_got_room_pair_in_whole_iterations() -> None:
    programs, groups = pipeline_programs(((SLOW, FAST), (FAST, FAST)), ITERATIONS)
    patterns = patterns_of_played(play(programs, groups), groups)
    short = [cut_short(pattern, 22 + rank) for rank, pattern in enumerate(patterns)]
    fleet = build_fleet(short, Settings(one_off_fraction=0.0))
    arrivals = read_arrivals(fleet)
    assert not [note for note in arrivals.notes if "do not pair" in note]
    assert arrivals.blame_share([0]) > 0.75
    assert arrivals.replay is not None
    assert arrivals.replay.graph.iterations == 5
    assert "gains come from a replay of the last 5 of 12 iterations" in arrivals.notes
    removed = np.zeros_like(fleet.iteration_us)
    removed[0] = 4 * 3 * (SLOW - FAST)
    _, _, healthy = pipeline((FAST, FAST), (FAST, FAST))
    truth = 1 - mean_us(healthy) / float(fleet.iteration_us.mean())
    gain = simulated_gain(msgspec.structs.replace(fleet, replay=arrivals.replay), removed)
    assert gain == pytest.approx(truth, abs=0.03)
