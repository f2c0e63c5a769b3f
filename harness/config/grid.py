"""The runs that a checked configuration asks for, and their names. No torch.

``values`` is the whole of a configuration, defaults filled in. Studies are the same functions on changed values.
"""

from harness import plugins
from harness.config.variants import Variant, chosen
from harness.spec import Cluster, Measurement, RunSpec, Scheme, Training
from harness.topology import ALL_GATHER, TOPOLOGIES, Topology

RECIPE = ("epochs", "lr", "warmup_epochs")  # what decides an accuracy run alone


def expand(values: dict) -> dict[str, RunSpec]:
    """The runs of the paper's tables, name -> spec, accuracy runs first."""
    return accuracy(values) | timing(values)


def accuracy(values: dict) -> dict[str, RunSpec]:
    """The accuracy runs, name -> spec."""
    return {
        f"accuracy/{accuracy_name(spec)}": spec
        for model in values["models"]
        for variant in chosen(values).values()
        for ratio in ratios(values, variant, "accuracy")
        for seed in values["seeds"]
        for spec in [accuracy_run(values, model, variant, ratio, seed)]
    }


def timing(values: dict) -> dict[str, RunSpec]:
    """The timing runs, name -> spec; a topology's are those of the methods that it can answer."""
    counts = {key: values["timing"][key] for key in ("blocks", "repeats")}
    return {
        f"timing/{timing_name(spec)}": spec
        for model in values["models"]
        for variant in chosen(values).values()
        for topology in topologies_of(values, model)
        if topology.answers(variant.about["one_sum"])
        for ratio in ratios(values, variant, "timing")
        for spec in [
            RunSpec(
                "timing",
                # Table 2 shows how long the recipe's epochs would take.
                _training(values, model, epochs=values["models"][model]["epochs"]),
                _scheme(values, variant, "timing", ratio, topology, model=True),
                _cluster(values, topology),
                Measurement(**counts),
            )
        ]
    }


def calibrations(values: dict) -> dict[str, RunSpec]:
    """Layer times per model, exchange times per variant and ratio: a new method adds only its own."""
    found = {}
    for model in values["models"]:
        merging = Scheme(bucket_bytes=values["bucket_bytes"], planner=values["planner"])
        spec = RunSpec("layers", _training(values, model), merging, _cluster(values), Measurement(repeats=30))
        found[f"layers/{layers_name(spec)}"] = spec
    for topology in all_topologies(values):
        models = [model for model in values["models"] if topology in topologies_of(values, model)]
        largest = max(plugins.describe("models", model)["parameters"] for model in models)
        for variant in chosen(values).values():
            if not topology.answers(variant.about["one_sum"]):
                continue
            for ratio in ratios(values, variant, "timing"):
                scheme = _scheme(values, variant, "timing", ratio, topology, model=False)
                measured = Measurement(repeats=4, largest_entries=largest)
                spec = RunSpec("exchanges", Training(), scheme, _cluster(values, topology), measured)
                found[f"exchanges/{exchange_name(spec)}"] = spec
    return found


def accuracy_run(values: dict, model: str, variant: Variant, ratio: float | None, seed: int) -> RunSpec:
    """An accuracy run; it uses collectives, since what is learnt is the same with a server."""
    recipe, points = values["models"][model], values["accuracy"]["evaluations"]
    train_epochs = recipe.get("train_epochs", recipe["epochs"])
    samples = {key: values["accuracy"][key] for key in ("test_samples", "final_test_samples")}
    evaluations = round(train_epochs) if points == "per epoch" else points
    learnt = {key: recipe[key] for key in RECIPE} | {"lr_steps": tuple(recipe["lr_steps"])}
    return RunSpec(
        "accuracy",
        _training(values, model, **learnt, train_epochs=train_epochs, seed=seed),
        _scheme(values, variant, "accuracy", ratio, ALL_GATHER, model=True),
        _cluster(values),
        Measurement(evaluations=evaluations, **samples),
    )


def ratios(values: dict, variant: Variant, kind: str) -> list[float | None]:
    """The ratios at which a variant runs: its own, those of the kind of run, or none."""
    if "ratio" in variant.options:
        return [variant.options["ratio"]]
    return values[kind]["ratios"] if "ratio" in variant.fields else [None]


def planned_by(spec: RunSpec) -> str | None:
    """What a run takes from its plan: "groups" or "ratios"; None: it reads no plan."""
    plan = plugins.describe("methods", spec.scheme.method)["plan"]
    return None if plan == "groups" and spec.scheme.planner == "layer" else plan


def plan_name(spec: RunSpec, runs: dict[str, RunSpec]) -> str | None:
    """The name of the plan that a run reads, if any; ``runs``: those of the paper's tables.

    An accuracy run reads the plan of the timing run over collectives that is otherwise like it.
    """
    if spec.kind == "planners" or (spec.kind == "timing" and planned_by(spec)):
        return timing_name(spec)
    if not planned_by(spec):
        return None

    def key(one: RunSpec) -> tuple:
        return one.training.model, one.variant, one.ratio, one.topology

    alike = (one for one in runs.values() if one.kind == "timing" and key(one) == key(spec))
    return next(map(timing_name, alike), None)


def layers_name(spec: RunSpec) -> str:
    """The name of the calibration of a run's layers."""
    return f"{spec.training.model}-{spec.cluster.workers}workers"


def exchange_name(spec: RunSpec) -> str:
    """The name of the calibration of a run's exchanges: variant, selection unless it is the paper's, ratio,
    topology, collective unless it is the engine's, workers and links."""
    scheme, cluster = spec.scheme, spec.cluster
    fast = "-fast" if scheme.options.get("selection") == "fast" else ""
    collective = "" if scheme.collective == "engine" else f"-{scheme.collective}"
    rates = sorted(set(cluster.rates_mbit))
    links = "-".join(f"{rate:g}" for rate in rates) + "mbit" if rates else cluster.network
    name = f"{spec.variant}{fast}{_at(spec)}-{scheme.topology}{collective}"
    return f"{name}-{cluster.workers}workers-{links}"


def timing_name(spec: RunSpec) -> str:
    """The name of a timing run, and of its plan."""
    return f"{spec.training.model}-{exchange_name(spec)}"


def accuracy_name(spec: RunSpec) -> str:
    return f"{spec.training.model}-{spec.variant}{_at(spec)}-seed{spec.training.seed}"


def topologies_of(values: dict, model: str) -> list[Topology]:
    """The topologies over which a model is timed."""
    return [TOPOLOGIES[name] for name in values["models"][model].get("topologies", values["topologies"])]


def all_topologies(values: dict) -> list[Topology]:
    found = {topology.name: topology for model in values["models"] for topology in topologies_of(values, model)}
    return [found[name] for name in sorted(found)]


def processes(values: dict) -> int:
    """Of the largest run: the workers, and the servers that a topology needs."""
    return values["workers"] + max(topology.servers for topology in all_topologies(values))


def only(values: dict, models: list[str], topologies: list[str]) -> dict[str, dict]:
    """These of the configuration's models, over these topologies: ``models`` of a changed configuration."""
    return {name: model | {"topologies": topologies} for name, model in values["models"].items() if name in models}


def shorter(values: dict) -> dict:
    """``timing`` of a changed configuration with the blocks and repeats of studies."""
    return values["timing"] | {key: values["studies"][key] for key in ("blocks", "repeats")}


def data_of(values: dict, model: str) -> tuple[str, bool]:
    """The data set of a model, and whether it stands in for the one that the model is meant for."""
    recipe = values["models"][model]
    data = recipe.get("data", plugins.describe("models", model)["data"])
    stands_in = data == "imagenet100" and not values["data"]["imagenet"]
    return (recipe["stand_in"], True) if stands_in else (data, False)


def _at(spec: RunSpec) -> str:
    return f"-{spec.ratio}" if spec.ratio else ""


def _training(values: dict, model: str, **more) -> Training:
    """The part that all runs of a model share, and ``more``."""
    recipe = values["models"][model]
    data, stand_in = data_of(values, model)
    shared = {key: recipe[key] for key in ("batch", "momentum", "weight_decay")}
    return Training(model, data, stand_in, **shared, **more)


def _scheme(values: dict, variant: Variant, kind: str, ratio: float | None, topology: Topology, model: bool) -> Scheme:
    """A variant in a kind of run, which says how entries are selected unless the variant does; ``model``: whether
    the run trains one, and so merges its layers."""
    selection = {"selection": values[kind]["selection"]} if "selection" in variant.fields else {}
    asked = {} if ratio is None else {"ratio": ratio}
    merging = {"bucket_bytes": values["bucket_bytes"]} if model else {}
    if model and variant.about["plan"] == "groups":
        merging["planner"] = values["planner"]
    return Scheme(
        variant.method,
        "" if variant.name == variant.method else variant.name,
        selection | variant.options | asked,
        topology.name,
        values["collective"],
        values["wire"],
        **merging,
    )


def _cluster(values: dict, topology: Topology | None = None) -> Cluster:
    """Over ``topology`` on the configuration's network, where the last hosts are the servers'; else on the host's."""
    shared = {key: values[key] for key in ("engine", "workers", "threads", "device")}
    if topology is None or values["network"] == "host":
        return Cluster(**shared)
    own = {str(host): rate for host, rate in values["testbed"]["host_rates_mbit"].items()}
    hosts = range(values["workers"] + topology.servers)
    rates = tuple(float(own.get(str(host), values["testbed"]["rate_mbit"])) for host in hosts)
    return Cluster(**shared, network="testbed", rates_mbit=rates)
