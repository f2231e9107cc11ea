"""The configuration file: one documented model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from pythia.errors import BadConfig, BadFile
from pythia.records import read_yaml

Positive = Annotated[float, msgspec.Meta(gt=0)]
Order = Literal["fcfs", "session", "las", "pythia", "oracle"]
Route = Literal["least", "round_robin", "sticky", "prefix", "pythia"]
Cache = Literal["lru", "ttl", "kvflow", "pythia", "belady"]
Scale = Literal["off", "reactive", "pythia"]


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which mechanism decides; each can be switched off by naming another one.

    Attributes:
        order: Order of waiting requests: arrival, arrival of the run (`session`), least attained service, or
            prediction. `oracle` exists in the simulator only.
        route: Choice of the replica.
        hold: Whether requests wait in the gateway until a replica has a free slot.
        cache: Which cached prefixes are kept. `lru` sends no hints. `ttl`, `kvflow` and `belady` exist in the
            simulator only.
        prefetch: Whether predicted prefixes are computed while an engine is idle.
        scale: Whether replicas are started and stopped.
    """

    order: Order = "pythia"
    route: Route = "pythia"
    hold: bool = True
    cache: Cache = "pythia"
    prefetch: bool = True
    scale: Scale = "off"


#: First come, first served, to the replica with the fewest requests: what serving stacks do by default.
REACTIVE = Policy("fcfs", "least", False, "lru", False, "off")


class Replica(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One engine that already runs.

    Attributes:
        url: Where it listens, without a path.
        slots: Requests that it runs at once; 0 if unknown (then nothing waits in the gateway for it).
        kv_tokens: Tokens of its KV cache; 0 if unknown (then nothing is counted).
        kind: `pythia` is this package's own engine; `vllm` and `dynamo` get hints by their names; `openai` gets none.
    """

    url: Annotated[str, msgspec.Meta(pattern="^https?://")]
    slots: Annotated[int, msgspec.Meta(ge=0)] = 0
    kv_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0
    kind: Literal["openai", "pythia", "vllm", "dynamo"] = "openai"


class Launch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How replicas of a model are started.

    Attributes:
        command: Command and arguments; "{port}" becomes a free port of this host.
        replica: Slots, KV tokens and kind of what it starts; its url is ignored.
        least, most: Number of replicas, those that run already included.
        start_s: Seconds that a start may take.
    """

    command: list[str]
    replica: Replica
    least: Annotated[int, msgspec.Meta(ge=0)] = 0
    most: Annotated[int, msgspec.Meta(ge=1)] = 1
    start_s: Positive = 300.0


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The replicas of one model."""

    replicas: list[Replica] = []
    launch: Launch | None = None


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole configuration.

    Attributes:
        models: Replicas by model name; "*" takes every model that has no entry of its own.
        listen: Address and port, as HOST:PORT.
        profiles: File that keeps what was learned.
        log: File that every completed request with identifiers is appended to (no prompts); empty for none.
        policy: Which mechanism decides.
        dry_run: Serve reactively, and log and count what would have been done instead.
        epsilon: Probability that the requests of one replica exceed its KV cache.
        limit_s: Wait after which the first step of a run of several steps goes before everything else.
        refuse_beyond_limit: Answer 429 with Retry-After at once if a first step cannot be served within the limit.
        age_s: Seconds of a run's age that outweigh the whole range of priorities.
        w_completion, w_unblock: Weights of the two parts of a priority.
        idle_s: Seconds without a request after which a run is over.
        connect_s, read_s: Time-outs of connecting to an engine, and between two of its bytes.
        most_body_bytes: Largest request body.
        most_waiting: Requests that may wait; beyond it the answer is 503 with Retry-After.
        assumed_output: Output bound of a request without max_tokens while history is thin, in tokens.
        horizon: Steps that the autoscaler looks ahead.
        cool_s: Seconds that a replica must be unneeded before it drains.
        keep_alive_s: The same for `scale: reactive`.
    """

    models: Annotated[dict[str, Model], msgspec.Meta(min_length=1)]
    listen: Annotated[str, msgspec.Meta(pattern=r":\d+$")] = "127.0.0.1:8080"
    profiles: str = "pythia-profiles.bin"
    log: str = ""
    policy: Policy = Policy()
    dry_run: bool = False
    epsilon: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.05
    limit_s: Positive = 30.0
    refuse_beyond_limit: bool = False
    age_s: Positive = 120.0
    w_completion: Annotated[float, msgspec.Meta(ge=0)] = 1.0
    w_unblock: Annotated[float, msgspec.Meta(ge=0)] = 0.5
    idle_s: Positive = 120.0
    connect_s: Positive = 5.0
    read_s: Positive = 600.0
    most_body_bytes: Annotated[int, msgspec.Meta(gt=0)] = 64 << 20
    most_waiting: Annotated[int, msgspec.Meta(gt=0)] = 10_000
    assumed_output: Annotated[int, msgspec.Meta(gt=0)] = 512
    horizon: Annotated[int, msgspec.Meta(ge=1, le=32)] = 2
    cool_s: Positive = 10.0
    keep_alive_s: Positive = 300.0

    def alpha(self, slots: int) -> float:
        """Return the miss probability of one request's bound: ε, split over all that may run at once."""
        return self.epsilon / max(slots, 1)


def read_settings(path: Path) -> Settings:
    """Read a YAML configuration.

    Raises:
        BadConfig: The file cannot be read or does not fit the model.
    """
    try:
        settings = read_yaml(path, Settings)
    except BadFile as error:
        raise BadConfig(f"{error}; docs/configuration.md lists all keys") from error
    for name, model in settings.models.items():
        if not model.replicas and model.launch is None:
            raise BadConfig(f"{path}: model {name!r} has neither replicas nor launch; give one of them")
    policy = settings.policy
    if policy.route == "pythia" and not policy.hold:
        raise BadConfig(f"{path}: policy.route: pythia needs policy.hold: true")
    if policy.order == "oracle" or policy.cache in ("ttl", "kvflow", "belady"):
        raise BadConfig(f"{path}: policy {policy.order}/{policy.cache} exists in `pythia simulate` only")
    return settings
