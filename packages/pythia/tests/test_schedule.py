"""Scheduler, retention, scaler, dispatcher and simulator: pure decisions."""

from __future__ import annotations

import random

import pytest

from pythia.dispatcher import Dispatcher, Retention
from pythia.profile import Profiles
from pythia.records import Identifiers, Job, Step
from pythia.schedule import Replica, Scaler, Scheduler
from pythia.settings import REACTIVE, Launch, Model, Policy, Settings
from pythia.settings import Replica as Described
from pythia.simulation import POLICIES, Engine, loaded, simulate, trained
from pythia.workflow import arrivals, read_workflow

SETTINGS = Settings({"": Model([Described("http://x", 4, 1000)])})
MIXTURE = [(read_workflow("coding"), 0.15), (read_workflow("research"), 0.25), (read_workflow("support"), 0.6)]
FEW = Engine(slots=4, kv_tokens=8192)


def scheduler(
    policy: Policy | None = None, *, slots: int = 1, kv: int = 0, replicas: int = 1, **changes: object
) -> Scheduler:
    made = Scheduler(policy or Policy(), Settings({"": Model()}, **changes))  # type: ignore[arg-type]
    for i in range(replicas):
        made.replicas[f"r{i}"] = Replica(f"r{i}", "", slots, kv)
    return made


def job(number: int, arrived: float = 0.0, **more: object) -> Job:
    return Job(number, f"s{number}", arrived, arrived, expected=10.0, **({"remaining": 100.0} | more))  # type: ignore[arg-type]


def test_what_ends_sooner_goes_first_and_age_outweighs_it_in_time():
    one = scheduler(age_s=30.0)
    one.submit(job(1, remaining=1000.0))
    one.submit(job(2, remaining=10.0))
    assert [j.number for j, _ in one.take(0.0)] == [2]
    other = scheduler(age_s=30.0)
    other.submit(job(1, 0.0, remaining=1000.0))
    other.submit(job(2, 60.0, remaining=10.0))
    assert [j.number for j, _ in other.take(60.0)] == [1]


def test_the_completion_score_is_capped():
    one = scheduler()
    one.unit = 10.0
    assert one.score(job(1, remaining=0.0)) == one.score(job(2, remaining=10.0)) == 1.0
    assert one.score(job(3, remaining=100.0)) == 0.1


def test_a_first_step_near_the_limit_goes_before_everything():
    one = scheduler(limit_s=10.0, age_s=1e9)
    one.submit(job(1, 0.0, remaining=1e6, first=True))
    for number in range(2, 30):
        one.submit(job(number, 0.0, remaining=1.0))
    assert next(iter(one.take(5.0)))[0].number == 2
    one.finish(one.replicas["r0"].active[2])
    assert next(iter(one.take(9.0)))[0].number == 1


def test_the_router_never_admits_beyond_its_own_accounting():
    rng = random.Random(1)
    one = scheduler(slots=8, kv=1000, replicas=2, epsilon=0.05)
    running: list[Job] = []
    for number in range(1, 3000):
        alpha = 0.05 / 8
        one.submit(job(number, float(number), prompt=rng.randint(10, 200), bound=rng.randint(10, 200), alpha=alpha))
        running += [j for j, _ in one.take(float(number))]
        for replica in one.replicas.values():
            assert len(replica.active) <= 8
            assert replica.reserved == sum(j.admitted_tokens for j in replica.active.values())
            assert replica.reserved <= 1000 or len(replica.active) == 1
            assert replica.alpha <= 0.05 + 1e-9
        while running and rng.random() < 0.6:
            one.finish(running.pop(rng.randrange(len(running))))
    assert len(one.waiting) < 3000


def test_a_cancelled_request_is_gone_wherever_it_was():
    one = scheduler()
    for number in (1, 2):
        one.submit(job(number))
    ((first, replica),) = one.take(0.0)
    one.finish(next(iter(one.waiting.values())))
    one.finish(first)
    assert not one.waiting
    assert not replica.active
    assert one.take(1.0) == []


def test_sick_and_draining_replicas_get_nothing_new():
    one = scheduler(replicas=2)
    one.replicas["r0"].state = "sick"
    one.replicas["r1"].state = "draining"
    one.submit(job(1))
    assert one.take(0.0) == []
    one.replicas["r0"].state = "ready"
    assert [r.name for _, r in one.take(0.0)] == ["r0"]


@pytest.mark.parametrize(("route", "names"), [("round_robin", ["r0", "r1", "r0"]), ("least", ["r0", "r1", "r0"])])
def test_simple_routes(route, names):
    one = scheduler(Policy("fcfs", route, False, "lru", False), slots=4, replicas=2)
    for number in range(3):
        one.submit(job(number, float(number)))
    assert [r.name for _, r in one.take(9.0)] == names


def test_sticky_and_prefix_routes_return_to_the_warm_replica():
    for route in ("sticky", "prefix"):
        one = scheduler(Policy("fcfs", route, False, "lru", False), slots=4, replicas=2)
        for number, session in enumerate(("a", "b", "b", "a")):
            made = Job(number, session, 0.0, 0.0, chain=(hash(session),))
            one.submit(made)
            one.take(0.0)
            assert made.replica == {"a": "r0", "b": "r1"}[session]


def test_prefixes_are_worth_what_running_workflows_will_use():
    one = Retention()
    one.want("run1", {"role": 0.5, "role\0run1": 1.0})
    one.want("run2", {"role": 0.5})
    assert one.value("role", 0.0) == 1.0
    assert one.want("run1", {}) == {"role", "role\0run1"}
    assert one.value("role\0run1", 0.0) == 0.0
    assert one.value("role", 0.0) == 0.5
    one.use("other", 0.0)
    assert one.value("other", 0.0) > one.value("other", 100.0) > 0


def planner_profiles() -> Profiles:
    profiles = Profiles()
    steps = []
    for i in range(40):
        steps.append(Step("w", f"r{i}", "planner", i * 10.0, 20, 10, 1.0, "a"))
        steps += [Step("w", f"r{i}", "explorer", i * 10.0 + 2, 20, 10, 1.0, "b") for _ in range(8)]
        steps.append(Step("w", f"r{i}", "end", i * 10.0 + 5, 5, 10, 1.0, "a", final=True))
    profiles.learn_log(steps)
    return profiles


def test_replicas_start_before_the_wave_and_drain_without_cutting():
    launch = Launch(["x"], Described("http://x", 4), 0, 3)
    settings = Settings(
        {"a": Model([Described("http://a", 4)]), "b": Model(launch=launch)}, policy=Policy(scale="pythia"), cool_s=5.0
    )
    dispatcher = Dispatcher(settings, planner_profiles())
    scheduler = dispatcher.scheduler
    scheduler.replicas["a"] = Replica("a", "a", 4)
    scaler = Scaler(settings)
    assert scaler.decide(scheduler, dispatcher.projected(), 0.0) == []
    arrival = dispatcher.arrive(Identifiers("w", "live", "planner"), "", "a", 10, None, 1e4)
    started = scaler.decide(scheduler, dispatcher.projected(), 0.0)  # the planner has not even answered
    assert [a.kind for a in started] == ["start"]
    assert started[0].model == "b"
    replica = Replica(started[0].name, "b", 4)
    scheduler.replicas[replica.name] = replica
    dispatcher.depart(arrival, Step("w", "live", "planner", 1e4, 20, 10, 1.0, "a", final=True), 1e4 + 1)
    busy = Job(99, "s", 0.0, 0.0, model="b")
    replica.admit(busy)
    dispatcher.profiles.open.clear()
    scheduler.replicas["extra-started-9"] = Replica("extra-started-9", "b", 4)

    def acted(*times: float) -> list[tuple[str, str]]:
        found = []
        for at in times:
            for action in scaler.decide(scheduler, {}, at):
                found.append((action.kind, action.name))
                if action.kind == "stop":
                    del scheduler.replicas[action.name]
        return found

    first = acted(10.0, 12.0, 16.0, 17.0)
    assert ("stop", "extra-started-9") in first
    assert ("stop", replica.name) not in first  # it still has a request
    scheduler.finish(busy)
    assert ("stop", replica.name) in acted(30.0, 36.0, 37.0)
    assert set(scheduler.replicas) == {"a"}


def test_reactive_scaling_waits_until_somebody_waits():
    launch = Launch(["x"], Described("http://x", 4), 0, 3)
    settings = Settings({"b": Model(launch=launch)}, policy=Policy(scale="reactive"))
    dispatcher = Dispatcher(settings, planner_profiles())
    scaler = Scaler(settings)
    dispatcher.scheduler.submit(Job(1, "s", 0.0, 0.0, model="b"))
    assert scaler.decide(dispatcher.scheduler, {"b": 8.0}, 0.5) == []
    assert [a.kind for a in scaler.decide(dispatcher.scheduler, {"b": 8.0}, 2.0)] == ["start"]


def test_every_policy_serves_everything_and_the_same_twice():
    profiles = trained(MIXTURE, FEW, 60)
    plans = arrivals(MIXTURE, 1.0, 30.0, 1)
    for name, policy in POLICIES.items():
        results = [simulate(plans, policy, FEW, profiles=profiles.copy(), models={"": 2}) for _ in range(2)]
        assert results[0].requests == sum(len(p.steps) for p in plans), name
        assert len(results[0].jct_s) == len(plans)
        assert (results[0].jct_s == results[1].jct_s).all(), name
        assert 0 <= results[0].hit_share <= 1


def test_without_load_all_policies_take_what_the_engine_takes():
    """A conservation law: a single run takes its iterations, whatever the policy."""
    (plan,) = arrivals([(read_workflow("support"), 1.0)], 1.0, 3.0, 5)[:1]
    engine = Engine(fixed_s=0.01, sequence_s=0.0, prefill_s=0.0)
    result = simulate([plan], REACTIVE, engine, models={"": 1})
    # one iteration per output token, and one per 512 prompt tokens, the last of which gives the first output token
    assert result.jct_s[0] == pytest.approx(sum(s.output for s in plan.steps) * 0.01, rel=0.02)


def test_mixtures_are_served_sooner_than_first_come_first_served():
    profiles = trained(MIXTURE, FEW, 200)
    plans = loaded(MIXTURE, FEW, 2, 0.97, 200, 1)
    base, ours = (
        simulate(plans, POLICIES[n], FEW, profiles=profiles.copy(), models={"": 2}) for n in ("fcfs+least", "pythia")
    )
    assert base.mean_s / ours.mean_s > 1.15


def test_start_up_time_is_hidden_by_starting_before_the_wave():
    workflow = read_workflow("coding")
    roles = {
        n: type(r)(**{f: getattr(r, f) for f in r.__struct_fields__} | {"model": "big" if n == "engineer" else "small"})
        for n, r in workflow.roles.items()
    }
    two = type(workflow)("coding", roles, workflow.flow, workflow.spread)
    plans = arrivals([(two, 1.0)], 0.05, 300.0, 3)
    profiles = Profiles()
    simulate(
        arrivals([(two, 1.0)], 0.2, 300.0, 4), REACTIVE, Engine(), profiles=profiles, models={"small": 8, "big": 8}
    )
    waits = {}
    for scale in ("reactive", "pythia"):
        policy = Policy(scale=scale)  # type: ignore[arg-type]
        result = simulate(
            plans,
            policy,
            Engine(start_s=4.0),
            profiles=profiles.copy(),
            models={"small": 2, "big": 2},
            cool_s=2.0,
            keep_alive_s=2.0,
            horizon=6,
        )
        waits[scale] = sum(result.waits_s) / len(result.waits_s)
    assert waits["pythia"] < waits["reactive"]
