"""The runs of a valid configuration, and their names. No torch.

``values`` is a whole configuration with all defaults. Studies call the same functions on changed values.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from dlgs_bench import plugins
from dlgs_bench.buckets import FIXED, fixed, planner_of
from dlgs_bench.config.variants import Variant, chosen, variant
from dlgs_bench.spec import UNCOMPRESSED, Cluster, Measurement, RunSpec, Scheme, Training
from dlgs_bench.topology import ALL_GATHER, TOPOLOGIES, Topology

RECIPE = ("epochs", "lr", "warmup_epochs", "precision")  # keys of a model that concern accuracy runs only
PROPORTIONAL = "proportional"  # testbed.rate_mbit: the rate follows from the calibration of each model
LAYERS_S = 12  # budget of a calibration of layers, with its start
IMAGENET, TIMED_STAND_IN = "imagenet100", "images224"
PLANNED = "planned"  # the bucketing of a baseline by the configuration's planner
LONGEST_NAME = 100  # characters of the variants' names in the name of a run's folder
# The keys of a recipe that only some optimizers have, with their defaults.
OF_OPTIMIZER: dict[str, dict[str, Any]] = {
    "sgd": {"momentum": 0.9},
    "adamw": {"betas": [0.9, 0.999]},
    "muon": {"momentum": 0.95, "betas": [0.9, 0.999]},
}


def expand(values: dict) -> dict[str, RunSpec]:
    """The runs of the paper's tables, name -> spec, accuracy runs first."""
    return accuracy(values) | timing(values)


def accuracy(values: dict) -> dict[str, RunSpec]:
    """The accuracy runs, name -> spec."""
    specs = [
        _within_budget(values, accuracy_run(values, model, variant, ratio, seed))
        for model in trained_models(values)
        for variant in chosen(values).values()
        if variant.name not in values["accuracy"]["leave_out"]
        for ratio in ratios(values, variant, "accuracy")
        for seed in values["seeds"]
    ]
    return {f"accuracy/{accuracy_name(spec)}": spec for spec in specs}


def _within_budget(values: dict, spec: RunSpec) -> RunSpec:
    """An accuracy run that trains only the epochs that fit into ``accuracy.budget_s``, if there is a budget.

    The duration of a step follows from the calibration of the model's layers. A model has this calibration if it is
    timed over all-gather on the data set on which it trains. Otherwise it trains all its epochs.
    """
    model, budget_s = spec.training.model, values["accuracy"]["budget_s"]
    timed = values["timing"]["ratios"] and ALL_GATHER in topologies_of(values, model)
    if not (budget_s and timed and _timed(values, model).data == spec.training.data):
        return spec
    training = replace(spec.training, most_epochs=spec.training.train_epochs)
    return replace(spec, training=training, measurement=replace(spec.measurement, budget_s=budget_s))


def trained_models(values: dict) -> list[str]:
    """The models that have accuracy runs."""
    return [name for name, recipe in values["models"].items() if recipe.get("train_epochs", recipe["epochs"])]


def timing(values: dict) -> dict[str, RunSpec]:
    """The timing runs, name -> spec; none without ratios.

    The variants in ``timing.together`` take turns with uncompressed in one run per model and topology. Each other
    variant has a run of its own, with all its ratios and uncompressed, so that a new method repeats no other run.
    Uncompressed and 16 bits are timed with several ways of merging layers (``bucketings``).
    """
    if not values["timing"]["ratios"]:
        return {}
    return {name: spec for one in by_workers(values) for name, spec in _timing(one).items()}


def by_workers(values: dict) -> list[dict]:
    """The configuration, and a changed configuration for each number in ``more_workers`` of its models.

    A changed configuration has this number of workers and only the models that list it, over all-gather.
    """
    models = values["models"]
    more = dict.fromkeys(n for model in models.values() for n in model.get("more_workers", ()))
    own = {n: [name for name, model in models.items() if n in model.get("more_workers", ())] for n in more}
    return [values, *(values | {"workers": n, "models": only(values, own[n], [ALL_GATHER.name])} for n in more)]


def _timing(values: dict) -> dict[str, RunSpec]:
    """The timing runs with one number of workers."""
    all_runs = {}
    for model in values["models"]:
        for topology in topologies_of(values, model):
            run = uncompressed_run(values, model, topology)
            first, *dense = bucketings(values, run)
            every = timed_variants(values, run)
            shared = [spec for spec in every if spec.variant in values["timing"]["together"]]
            # A run that times n of m schemes has n / m of the budget.
            usual = 1 + len(dense) + len(shared or every)
            for name, specs in _runs_by_name(shared, every).items():
                spec = with_schemes(first, dense + specs)
                budget_s = round(_budget_s(values, model) * ((1 + len(dense) + len(specs)) / usual), 1)
                spec = replace(spec, measurement=replace(spec.measurement, budget_s=budget_s))
                all_runs[f"timing/{run_name(spec, name)}"] = spec
    return all_runs


def _runs_by_name(shared: list[RunSpec], every: list[RunSpec]) -> dict[str, list[RunSpec]]:
    """The schemes of each timing run: one run for ``shared``, and a run for each other variant in ``every``."""
    runs = {_joined(dict.fromkeys(spec.variant for spec in shared)): shared} if shared else {}
    for spec in every:
        if spec not in shared:
            runs.setdefault(spec.variant, []).append(spec)
    return runs or {UNCOMPRESSED: []}


def _budget_s(values: dict, model: str) -> float:
    """The budget of the timing runs of a model; 0 means no budget, for all models."""
    budget_s = values["timing"]["budget_s"]
    return values["models"][model].get("budget_s", budget_s) if budget_s else 0


def timed_variants(values: dict, run: RunSpec) -> list[RunSpec]:
    """``run`` with each variant, ratio and bucketing that its topology supports, without uncompressed."""
    return [
        spec
        for one in chosen(values).values()
        if one.name != UNCOMPRESSED and run.topology.supports(one.description["sum_kind"])
        for ratio in ratios(values, one, "timing")
        for spec in bucketings(values, replace(run, scheme=_scheme(values, one, "timing", ratio, run.topology)))
    ]


def bucketings(values: dict, run: RunSpec) -> list[RunSpec]:
    """The timing run of a variant; for a baseline, also the timing runs with all other ways of merging its layers.

    A baseline must have its best buckets. So it is timed at ``bucket_bytes``, at each of
    ``timing.baseline_bucket_bytes``, and with the groups of the planner. Sizes that give the same buckets are timed
    once.
    """
    if not plugins.describe("methods", run.scheme.method)["baseline"]:
        return [run]
    layers = plugins.describe("models", run.training.model)["layers"]
    sizes = {"": run.scheme.bucket_bytes}
    sizes |= {f"{size / 1024:g}kib": size for size in values["timing"]["baseline_bucket_bytes"]}
    merged: dict[tuple, RunSpec] = {}
    for name, size in sizes.items():
        scheme = replace(run.scheme, bucket_bytes=size, bucketing=name)
        merged.setdefault(tuple(fixed(size // 4)["size"](layers)), replace(run, scheme=scheme))
    runs = list(merged.values())
    if values["planner"] not in FIXED:
        runs.append(replace(run, scheme=replace(run.scheme, planner=values["planner"], bucketing=PLANNED)))
    return runs


def _joined(names: Iterable[str]) -> str:
    """The names of variants as part of a folder's name. After ``LONGEST_NAME`` characters, a checksum replaces them."""
    name = "-".join(names)
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[:LONGEST_NAME]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def uncompressed_run(values: dict, model: str, topology: Topology) -> RunSpec:
    """The timing run of uncompressed alone."""
    counts = {key: values["timing"][key] for key in ("launches", "blocks", "repeats", "width")}
    counts["blocks"] = values["models"][model].get("blocks", counts["blocks"])
    return RunSpec(
        "timing",
        # Table 2 shows how long the recipe's epochs would take.
        _timed(values, model, epochs=values["models"][model]["epochs"]),
        _scheme(values, variant(UNCOMPRESSED, {}), "timing", None, topology),
        _cluster(values, topology),
        Measurement(**counts),
    )


def with_schemes(first: RunSpec, others: list[RunSpec]) -> RunSpec:
    """The run ``first`` in which the schemes of ``others`` take turns with its own."""
    return replace(
        first, scheme=replace(first.scheme, timed_with={o.scheme.label: timed_with(o, first) for o in others})
    )


def timed_with(spec: RunSpec, first: RunSpec) -> dict:
    """The fields of the scheme of ``spec`` that differ from the scheme of ``first``, for ``Scheme.timed_with``."""
    own, base = vars(spec.scheme), vars(first.scheme)
    always = ("method", "variant", "options")
    return {key: value for key, value in own.items() if key in always or value != base[key]}


def calibrations(*configurations: dict) -> dict[str, RunSpec]:
    """The calibrations of layers per model, and of exchanges per timing run. A new method adds only its exchanges.

    ``configurations``: each with all its values. What one of them measures is not measured again for the next.
    """
    specs: dict[str, RunSpec] = {}
    calibrated: set[str] = set()
    for values in configurations:
        merging = Scheme(bucket_bytes=values["bucket_bytes"], planner=values["planner"])
        for name, run in timing(values).items():
            model, host = run.training.model, _without_links(run.cluster)
            layers = RunSpec("layers", _timed(values, model), merging, host, Measurement(repeats=12, budget_s=LAYERS_S))
            specs[f"layers/{layers_name(layers)}"] = layers
            members: dict[str, RunSpec] = {}
            for member in run.members.values():
                members.setdefault(exchange_name(member), member)  # the first bucketing represents the others
            new = [member for own, member in members.items() if own not in calibrated]
            calibrated |= set(members)
            if new:
                name = name.replace("timing/", "exchanges/")
                names = (name, *(f"{name}-{number}" for number in range(2, len(specs) + 3)))
                specs[next(free for free in names if free not in specs)] = _exchanges_of(values, new)
    return specs


def _exchanges_of(values: dict, timed: list[RunSpec]) -> RunSpec:
    """The calibration of the exchanges of these timed schemes in one run."""
    first, *others = map(_exchanges, timed)
    largest = {member.scheme.label: largest_bucket(member) for member in timed}
    counts = Measurement(repeats=3, largest=largest, budget_s=values["timing"]["calibration_budget_s"])
    return replace(with_schemes(first, others), measurement=counts)


def _exchanges(run: RunSpec) -> RunSpec:
    """The calibration of the exchanges of one timed scheme. It does not depend on a plan.

    It depends on the size of buckets only if the cost depends on the shapes of the model's layers.
    """
    unplanned = replace(run.scheme, planner=Scheme.planner)
    if not plugins.describe("methods", run.scheme.method)["cost_depends_on_shapes"]:
        unplanned = replace(unplanned, bucket_bytes=Scheme.bucket_bytes)
    return RunSpec("exchanges", Training(run.training.model), unplanned, run.cluster)


def largest_bucket(run: RunSpec) -> int:
    """The number of entries of the largest bucket that a timing run can have with any plan."""
    layers = plugins.describe("models", run.training.model)["layers"]
    scope = plugins.describe("methods", run.scheme.method)["scope"]
    groups = fixed(run.scheme.bucket_bytes // 4)[planner_of(scope, "all")](layers)
    return max(sum(layers[start:stop]) for start, stop in groups)


def accuracy_run(values: dict, model: str, variant: Variant, ratio: float | None, seed: int) -> RunSpec:
    """An accuracy run. It uses all-gather, since a server would lead to the same weights."""
    recipe, points = values["models"][model], values["accuracy"]["evaluations"]
    train_epochs = recipe.get("train_epochs", recipe["epochs"])
    samples = {key: values["accuracy"][key] for key in ("test_samples", "final_test_samples")}
    evaluations = max(1, round(train_epochs)) if points == "per epoch" else points
    learnt = {key: recipe[key] for key in RECIPE} | {"lr_steps": tuple(recipe["lr_steps"])}
    return RunSpec(
        "accuracy",
        _training(values, model, recipe.get("stand_in", ""), **learnt, train_epochs=train_epochs, seed=seed),
        _scheme(values, variant, "accuracy", ratio, ALL_GATHER),
        _cluster(values),
        Measurement(evaluations=evaluations, **samples),
    )


def refusal(collective: str, workers: int) -> str | None:
    """Why a collective does not support this number of workers, or None; ValueError if its file is invalid."""
    refuses = {} if collective == "engine" else plugins.describe("collectives", collective)["refuses"]
    return refuses.get(str(workers))


def ratios(values: dict, variant: Variant, kind: str) -> list[float | None]:
    """The ratios at which a variant runs: its parameter, or the ratios of the kind of run; [None] without a ratio."""
    if "ratio" in variant.options:
        return [variant.options["ratio"]]
    return values[kind]["ratios"] if "ratio" in variant.fields else [None]


def planned_by(spec: RunSpec) -> str | None:
    """The part of a plan that a run reads: "groups" or "ratios"; None if it reads no plan."""
    if spec.scheme.bucketing == PLANNED:
        return "groups"
    plan = plugins.describe("methods", spec.scheme.method)["plan"]
    return None if plan == "groups" and spec.scheme.planner in FIXED else plan


def plan_names(spec: RunSpec, runs: dict[str, RunSpec]) -> list[str]:
    """The names of the plans that a run reads; ``runs``: the runs of the paper's tables.

    An accuracy run reads the plan of the timed scheme with the same model, variant, ratio and topology.
    """
    planned = [member for member in spec.members.values() if planned_by(member)]
    if spec.kind == "planners":  # one plan has the groups of all planners
        dense = [timing_name(member) for member in planned if member.scheme.label != spec.scheme.label]
        return [timing_name(spec), *dense]
    if spec.kind == "timing":
        return [timing_name(member) for member in planned]
    if not planned:
        return []

    def key(one: RunSpec) -> tuple:
        return one.training.model, one.variant, one.ratio, one.topology

    timed = (member for one in runs.values() if one.kind == "timing" for member in one.members.values())
    return [timing_name(member) for member in timed if key(member) == key(spec)][:1]


def layers_name(spec: RunSpec) -> str:
    """The name of the calibration of a run's layers, and of the rate that follows from it."""
    return f"{spec.training.model}-{spec.cluster.workers}workers"


def timing_name(spec: RunSpec) -> str:
    """The name of one timed scheme, its plan and its row in tables.

    It consists of the model, variant, ratio, topology, workers and links, and of each of these parts that is not usual:
    compiled selection, bucketing, collective and latency.
    """
    merged = f"-{spec.scheme.bucketing}" if spec.scheme.bucketing else ""
    return _on_its_network(spec, f"{_timed_name(spec)}{merged}")


def exchange_name(spec: RunSpec) -> str:
    """The name of the calibration of a scheme's exchanges, which is equal for all its bucketings."""
    return _on_its_network(spec, _timed_name(spec))


def _timed_name(spec: RunSpec) -> str:
    compiled = "-compiled" if spec.scheme.options.get("selection") == "compiled" else ""
    return f"{spec.training.model}-{spec.variant}{compiled}{_at(spec)}"


def run_name(spec: RunSpec, name: str) -> str:
    """The full name of a timing run in which several schemes take turns, from its ``name`` and all their ratios.

    The other parts are the same as in ``timing_name``.
    """
    selections = {member.scheme.options.get("selection") for member in spec.members.values()} - {None}
    ratios = dict.fromkeys(f"-{member.ratio:g}" for member in spec.members.values() if member.ratio)
    kinds = {"compiled": "-compiled", "compiled torch": "-mixed"}  # variants can have a selection of their own
    name += kinds.get(" ".join(sorted(selections)), "") + "".join(ratios)
    return _on_its_network(spec, f"{spec.training.model}-{name}")


def _on_its_network(spec: RunSpec, begin: str) -> str:
    scheme, cluster = spec.scheme, spec.cluster
    collective = "" if scheme.collective == "engine" else f"-{scheme.collective}"
    rates = sorted(set(cluster.rates_mbit))
    links = "-".join(f"{rate:g}" for rate in rates) + "mbit" if rates else cluster.network
    links = PROPORTIONAL if cluster.in_proportion else links
    if cluster.latency_in_proportion:
        links += "-latency"
    elif cluster.latency_ms:
        links += f"-{cluster.latency_ms:g}ms"
    return f"{begin}-{scheme.topology}{collective}-{cluster.workers}workers-{links}"


def accuracy_name(spec: RunSpec) -> str:
    return f"{spec.training.model}-{spec.variant}{_at(spec)}-seed{spec.training.seed}"


def topologies_of(values: dict, model: str) -> list[Topology]:
    """The topologies over which a model is timed."""
    return [TOPOLOGIES[name] for name in values["models"][model].get("topologies", values["topologies"])]


def all_topologies(values: dict) -> list[Topology]:
    """All topologies over which a model is timed, by name."""
    by_name = {topology.name: topology for model in values["models"] for topology in topologies_of(values, model)}
    return [by_name[name] for name in sorted(by_name)]


def processes(values: dict) -> int:
    """The number of processes of the largest run: workers, and the servers of its topology."""
    every = [(one, topology) for one in by_workers(values) for topology in all_topologies(one)]
    return max(workers(one, topology) + topology.servers for one, topology in every)


def workers(values: dict, topology: Topology) -> int:
    """The number of workers over a topology."""
    return values.get("server_workers", values["workers"]) if topology.servers else values["workers"]


def engines(values: dict) -> list[str]:
    """The engines of the runs."""
    return list(dict.fromkeys([values["engine"], values["timing"].get("engine", values["engine"])]))


def only(values: dict, models: list[str], topologies: list[str]) -> dict[str, dict]:
    """``models`` of a changed configuration: only these models, over these topologies, without ``more_workers``."""
    own = {"topologies": topologies, "more_workers": []}
    return {name: model | own for name, model in values["models"].items() if name in models}


def shorter(values: dict) -> dict:
    """``timing`` of a changed configuration: the launches, blocks, repeats and budget of studies."""
    return values["timing"] | {key: values["studies"][key] for key in ("launches", "blocks", "repeats", "budget_s")}


def over_rates(values: dict, study: dict, topologies: list[str]) -> list[dict]:
    """The changed configurations at each of a study's ``rates_mbit``; an empty list without a testbed.

    They have the study's models over these topologies, and its ratio.
    """
    if values["network"] != "testbed":
        return []
    models = only(values, study["models"], topologies)
    short = values | {"models": models, "timing": shorter(values) | {"ratios": [study["ratio"]]}}
    links = values["testbed"] | {"host_rates_mbit": {}}
    return [short | {"testbed": links | {"rate_mbit": rate}} for rate in study["rates_mbit"]]


def data_of(values: dict, model: str) -> str:
    """The data set of a model."""
    return values["models"][model].get("data", plugins.describe("models", model)["data"])


def _at(spec: RunSpec) -> str:
    return f"-{spec.ratio}" if spec.ratio else ""


def _training(values: dict, model: str, stand_in: str, **more: Any) -> Training:
    """The training of a model's run: the fields that all its runs share, and ``more``.

    ``stand_in``: the data set that replaces a missing ImageNet-100.
    """
    data, recipe = data_of(values, model), values["models"][model]
    stands_in = data == IMAGENET and not values["data"]["imagenet"]
    shared = {key: recipe[key] for key in ("batch", "optimizer", "weight_decay")}
    shared |= {key: recipe.get(key, default) for key, default in OF_OPTIMIZER[recipe["optimizer"]].items()}
    if "betas" in shared:
        shared["betas"] = tuple(shared["betas"])
    return Training(model, stand_in if stands_in else data, stands_in, **shared | more)


def _timed(values: dict, model: str, **more: Any) -> Training:
    """The training of a model's timed run: the fields that all its timed runs share, and ``more``."""
    timed_batch = values["models"][model].get("timed_batch")
    return _training(values, model, TIMED_STAND_IN, **({"batch": timed_batch} if timed_batch else {}), **more)


def _scheme(values: dict, variant: Variant, kind: str, ratio: float | None, topology: Topology) -> Scheme:
    """The scheme of a variant in a kind of run. Both can set how entries are selected; the variant takes precedence."""
    selection = {"selection": values[kind]["selection"]} if "selection" in variant.fields else {}
    ratios = {} if ratio is None else {"ratio": ratio}
    merging = {"bucket_bytes": values["bucket_bytes"]}
    if variant.description["plan"] == "groups":
        usual = values["accuracy"]["planner"] if kind == "accuracy" else values["planner"]
        merging["planner"] = variant.planner or usual
    return Scheme(
        method=variant.method,
        variant="" if variant.name == variant.method else variant.name,
        options=selection | variant.options | ratios,
        topology=topology.name,
        collective=values["collective"],
        streams=streams(values),
        wire=values["wire"],
        **merging,
    )


def streams(values: dict) -> dict[str, int]:
    """The configuration's options of streams, if its collective has streams."""
    name = values["collective"]
    return {} if name == "engine" or plugins.describe("collectives", name)["plain"] else values["streams"]


def _cluster(values: dict, topology: Topology | None = None) -> Cluster:
    """The cluster of a timed run over ``topology``, or of an accuracy run if ``topology`` is None.

    Timed runs use the configuration's network, in which the servers are the last hosts. Accuracy runs use the host's.
    """
    shared = {key: values[key] for key in ("engine", "threads", "device")}
    shared["workers"] = workers(values, topology or ALL_GATHER)
    if topology is not None:
        shared["engine"] = values["timing"].get("engine", values["engine"])
    if topology is None or values["network"] == "host":
        return Cluster(**shared)
    latency_ms, in_proportion = values["testbed"]["latency_ms"], values["testbed"]["rate_mbit"] == PROPORTIONAL
    # A study that sets the rate of its links does not imitate other nodes, so proportional latency is 0.
    shared |= {"network": "testbed", "latency_ms": 0.0 if latency_ms == PROPORTIONAL else float(latency_ms)}
    if in_proportion:
        return Cluster(**shared, in_proportion=True, latency_in_proportion=latency_ms == PROPORTIONAL)
    own = {str(host): rate for host, rate in values["testbed"]["host_rates_mbit"].items()}
    hosts = range(shared["workers"] + topology.servers)
    rates = tuple(float(own.get(str(host), values["testbed"]["rate_mbit"])) for host in hosts)
    return Cluster(**shared, rates_mbit=rates)


def _without_links(cluster: Cluster) -> Cluster:
    """The same processes on the host's network, for runs that send nothing."""
    return replace(
        cluster, network="host", rates_mbit=(), latency_ms=0.0, in_proportion=False, latency_in_proportion=False
    )
