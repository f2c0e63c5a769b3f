"""RunSpec: all that decides one run, as a frozen dataclass and as JSON. No torch, no Snakemake."""

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal


@dataclass(frozen=True)
class RunSpec:
    """One run. Times are in seconds, budgets in epochs, batch sizes per worker."""

    kind: Literal["accuracy", "timing", "planners", "layers", "exchanges"]
    model: str  # "" for exchanges, which need none
    method: str
    ratio: float | None  # None for exact methods
    options: dict[str, Any] = field(default_factory=dict)  # the method's own parameters
    bucket_bytes: int = 2**23  # what uncompressed gradients are merged up to

    planner: str = "layer"  # how methods of scope "plan" merge layers
    groups: tuple[tuple[int, int], ...] = ()  # what the planner found: (start, stop) of layers, last layer first
    ratios: tuple[float, ...] = ()  # one for each group, where the plan chose them
    plans: dict[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)  # planners: their groups

    engine: str = "horovod"
    topology: Literal["allgather", "ps-weights", "ps-sparse"] = "allgather"
    wire: Literal["indices", "smallest"] = "indices"  # how places travel
    workers: int = 2  # a parameter server is a process more
    threads: int = 1  # per worker
    device: Literal["cpu", "cuda"] = "cpu"
    network: Literal["host", "testbed"] = "host"
    rates_mbit: tuple[float, ...] = ()  # testbed: of each host's link
    seed: int = 0

    data: str = "cifar10"
    data_root: str = "data"
    stand_in: bool = False  # the data is not what the paper used for this model

    batch: int = 32
    epochs: float = 140  # the recipe's; the learning-rate schedule refers to these
    train_epochs: float = 140  # what an accuracy run really trains; the schedule is scaled to it
    lr: float = 0.1
    lr_steps: tuple[float, ...] = ()
    momentum: float = 0.9
    weight_decay: float = 1e-4
    warmup_epochs: float = 0

    evaluations: int = 10  # accuracy: points of the curve, the last at the end
    test_images: int = 10_000  # accuracy: how many are used at points before the last
    final_test_images: int = 10_000  # accuracy: how many are used at the last point
    blocks: int = 5  # timing: turns of (uncompressed, method)
    repeats: int = 3  # timing: iterations of each phase in a block; calibration: samples
    largest_entries: int = 0  # exchanges: the largest bucket to measure

    @property
    def servers(self) -> int:
        """How many processes train nothing; they are the last ranks."""
        return int(self.topology != "allgather")

    def serves(self, rank: int) -> bool:
        return rank >= self.workers

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "RunSpec":
        return cls.from_dict(json.loads(text))

    @classmethod
    def from_dict(cls, values: dict) -> "RunSpec":
        """From JSON's types, as in the record of a run."""
        tuples = {key: tuple(values[key]) for key in ("lr_steps", "ratios", "rates_mbit")}
        plans = {name: _groups(plan) for name, plan in values["plans"].items()}
        return cls(**values | tuples | {"groups": _groups(values["groups"]), "plans": plans})

    def planned(self, plan: dict) -> "RunSpec":
        """This run with a plan's groups; ValueError in one line if the plan is for another run."""
        for key in ("model", "method", "ratio", "engine", "topology", "workers", "planner"):
            if plan[key] != getattr(self, key):
                raise ValueError(f"the plan is for {key} {plan[key]}, this run has {key} {getattr(self, key)}")
        if self.kind == "planners":
            return replace(self, plans={name: _groups(row["plan"]) for name, row in plan["comparison"].items()})
        return replace(self, groups=_groups(plan["groups"]), ratios=tuple(plan["ratios"]))

    def learning_rate(self, epoch: float) -> float:
        """The rate at ``epoch`` of this run: stepped by 10 at ``lr_steps``, after a linear warm-up."""
        of_recipe = epoch * self.epochs / self.train_epochs
        if of_recipe < self.warmup_epochs:
            return self.lr * (of_recipe + 1e-9) / self.warmup_epochs
        return self.lr * 0.1 ** sum(of_recipe >= step for step in self.lr_steps)

    def title(self) -> str:
        ratio = f" at {self.ratio}" if self.ratio else ""
        return " ".join(filter(None, (self.kind, self.model, self.method + ratio)))


def _groups(plan) -> tuple[tuple[int, int], ...]:
    return tuple(map(tuple, plan))
