"""The runs of all variants of the study: accuracy runs of the first model, and timing runs of many variants each."""

from dataclasses import replace

from dlgs_bench import plugins
from dlgs_bench.config import grid, variants
from dlgs_bench.errors import ConfigError, wrong_options
from dlgs_bench.spec import RunSpec
from dlgs_bench.topology import ALL_GATHER

RATES = "rates"  # in the names of the first model's timing runs, from which its time to an accuracy follows


def asked(values: dict) -> dict:
    """The configuration with the study's variants, uncompressed and the baseline first."""
    study = values["studies"]["methods"]
    given = study["variants"] | values["variants"]
    wanted = study["methods"]
    if wrong := variants.unknown(study["baseline"], given):
        raise ConfigError(f"studies.methods.baseline: {wrong}")
    if wanted == "all":
        wanted = _every_method(values, given)
        wanted += [name for name in given if name not in plugins.names("methods")]
    with_variants = values | {"variants": given, "methods": list(dict.fromkeys(["none", study["baseline"], *wanted]))}
    wrong = variants.problem(with_variants)
    if wrong:
        raise ConfigError(f"studies.methods.{wrong}")
    return with_variants


def _every_method(values: dict, given: dict) -> list[str]:
    """The methods that can run, by name. Files that cannot run with their defaults are left out, and so are copies.

    So a file that the configuration does not name stops no configuration. A copy has the title of another method.
    """
    sgd = all(model["optimizer"] == "sgd" for model in values["models"].values())
    chosen: dict[str, str] = {}  # title -> name
    for name in sorted(plugins.usable("methods"), key=lambda name: name not in [*values["methods"]]):
        metadata, settings = plugins.describe("methods", name), given.get(name, {})
        ratio = {"ratio": 1.0} if "ratio" in metadata["fields"] else {}
        runs_by_default = settings or not wrong_options(name, metadata["fields"], ratio)
        if runs_by_default and (sgd or not metadata["needs_sgd"]):
            chosen.setdefault(variants.variant(name, settings).title, name)
    return sorted(chosen.values())


def changed(values: dict) -> list[dict]:
    """The changed configurations that the study times.

    The first has the study's models over the configuration's links. The others have the first model at each of the
    study's rates, or over the host's network if there is no testbed.
    """
    study, first = values["studies"]["methods"], next(iter(values["models"]))
    turns = {"ratios": [study["ratio"]], "selection": study["selection"], "blocks": study["blocks"]}
    turns |= {"repeats": 1, "budget_s": 0, "launches": 1}
    timed = asked(values) | {"timing": values["timing"] | turns}
    named = [model for model in study["models"] if model in values["models"]] or [first]
    large, small = (timed | {"models": grid.only(values, models, [ALL_GATHER.name])} for models in (named, [first]))
    if values["network"] != "testbed":
        return [large, small]
    rates = study["rates_mbit"]
    links = values["testbed"] | {"host_rates_mbit": {}}
    return [large, *(small | {"testbed": links | {"rate_mbit": rate}} for rate in rates)]


def runs(values: dict) -> dict[str, RunSpec]:
    large, *small = changed(values)
    specs = accuracy(values) | together(large, "")
    for one in small:
        specs |= together(one, RATES)
    return specs


def accuracy(values: dict) -> dict[str, RunSpec]:
    """Accuracy runs at a constant learning rate, so that each point of a curve is the end of a shorter training."""
    study, first = values["studies"]["methods"], next(iter(values["models"]))
    recipe = values["models"][first] | {"train_epochs": study["train_epochs"]}
    recipe |= {"lr_steps": [], "warmup_epochs": 0}
    points = {key: study[key] for key in ("evaluations", "test_samples", "final_test_samples")}
    learnt = asked(values) | {"accuracy": values["accuracy"] | points | {"ratios": [study["ratio"]]}}
    specs = {}
    for variant in variants.chosen(learnt).values():
        models = {first: recipe | {"lr": study["lr"].get(variant.name, recipe["lr"])}}
        for ratio in grid.ratios(learnt, variant, "accuracy"):
            for seed in values["seeds"]:
                spec = grid.accuracy_run(learnt | {"models": models}, first, variant, ratio, seed)
                measured = replace(spec.measurement, byte_budget=1e6 * study["megabytes"])
                specs[f"accuracy/methods-{grid.accuracy_name(spec)}"] = replace(spec, measurement=measured)
    return specs


def together(timed: dict, name: str) -> dict[str, RunSpec]:
    """The timing runs of a changed configuration, each with the baseline and up to ``together`` other variants."""
    study, specs = timed["studies"]["methods"], {}
    others = [one for one in variants.chosen(timed) if one not in ("none", study["baseline"])]
    for number, start in enumerate(range(0, len(others) or 1, study["together"])):
        here = [study["baseline"], *others[start : start + study["together"]]]
        timing = timed["timing"] | {"together": here}
        for spec in grid.timing(timed | {"methods": ["none", *here], "timing": timing}).values():
            specs[f"timing/{grid.run_name(spec, f'methods-{name}{number}')}"] = spec
    return specs
