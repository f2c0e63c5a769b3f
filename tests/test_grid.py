"""Configurations: the runs that they expand to."""

from dataclasses import replace
from itertools import combinations

import pytest
from support import read

from dlgs_bench import plugins
from dlgs_bench.buckets import assign_buckets
from dlgs_bench.config import figures, grid, variants
from dlgs_bench.config import load as config
from dlgs_bench.errors import ConfigError
from dlgs_bench.spec import RunSpec

pytestmark = pytest.mark.unit


def trained(**more) -> dict:
    """The values of quick, with all of its models trained."""
    values = read("quick") | more
    values["models"] = {name: recipe | {"train_epochs": 0.01} for name, recipe in values["models"].items()}
    return values


@pytest.mark.parametrize("name, per_seed", [("quick", 4), ("paper", 15)])
def test_the_papers_grid_is_one_accuracy_run_per_method_and_one_timing_run_per_model_and_topology(name, per_seed):
    """quick trains one model, and times 16 bits without training with them. Topologies that sum uncompressed gradients
    time uncompressed and 16 bits with three bucketings each."""
    values = read(name)
    loaded = config.load(values, name)
    runs = loaded.runs
    kinds = [run.split("/")[0] for run in runs]
    assert kinds.count("accuracy") == per_seed * len(values["seeds"])
    topologies = [t for m in values["models"].values() for t in m.get("topologies", values["topologies"])]
    timed = [spec for spec in runs.values() if spec.kind == "timing"]
    members = {spec.topology.name: len(spec.members) for spec in timed}
    assert len(timed) == len(topologies) and members.pop("allgather") == 12 and set(members.values()) <= {9}
    own = grid.calibrations(loaded.values)
    exchanged = {grid.timing_name(m) for s in own.values() if s.kind == "exchanges" for m in s.members.values()}
    assert exchanged == {grid.exchange_name(member) for spec in timed for member in spec.members.values()}


def test_a_method_that_is_added_is_timed_in_a_run_of_its_own_and_changes_no_other():
    values = read("quick") | {"network": "host"}
    values["models"]["resnet20"].pop("topologies")  # a server answers few methods
    before = config.load(values, "c")
    after = config.load(values | {"methods": [*values["methods"], "qsgd", "gtopk"]}, "c")
    own, more = (grid.calibrations(one.values) for one in (before, after))
    for old, new in ((before.runs, after.runs), (own, more)):
        assert {name: new[name] for name in old} == old
    new = {name: spec for name, spec in after.runs.items() if name not in before.runs and spec.kind == "timing"}
    dense = "none", "none-256kib", "none-planned"
    assert {tuple(spec.members) for spec in new.values()} == {(*dense, "qsgd"), (*dense, "gtopk-0.1", "gtopk-0.01")}
    new = {name: spec for name, spec in more.items() if name not in own}
    assert {tuple(spec.members) for spec in new.values()} == {("qsgd",), ("gtopk-0.1", "gtopk-0.01")}


def test_a_baseline_is_timed_with_each_different_way_of_merging_its_layers():
    timing = {"ratios": [0.1], "baseline_bucket_bytes": [262144, 261120, 2**40, 4]}
    values = read("quick") | {"network": "host", "methods": ["none", "cast", "topk"], "planner": "mg-wfbp"}
    values["timing"] |= timing
    values["models"] = {"resnet20": values["models"]["resnet20"] | {"topologies": ["allgather"]}}
    (spec,) = grid.timing(config.load(values, "c").values).values()
    # 8 MiB and more hold the whole of ResNet-20; 255 and 256 KiB cut it alike.
    ways = ["", "-256kib", "-0.00390625kib", "-planned"]
    assert list(spec.members) == [f"{name}{way}" for name in ("none", "cast") for way in ways] + ["topk-0.1"]
    sizes = plugins.describe("models", "resnet20")["layers"]
    cuts = [assign_buckets(sizes, "size", "layer", m.scheme.bucket_bytes // 4) for m in spec.members.values()]
    assert [len(groups) for groups in cuts[:3]] == [1, len(cuts[1]), len(sizes)] and 1 < len(cuts[1]) < len(sizes)
    planned = [label for label, member in spec.members.items() if grid.planned_by(member) == "groups"]
    assert planned == ["none-planned", "cast-planned"]
    fixed = config.load(values | {"planner": "layer"}, "c").values
    assert not [label for one in grid.timing(fixed).values() for label in one.members if "planned" in label]


def test_a_default_that_names_a_deleted_method_is_no_mistake_but_a_name_that_was_given_is(monkeypatch):
    monkeypatch.setattr(plugins, "names", lambda kind, names=plugins.names: sorted({*names(kind)} - {"lags"}))
    values = read("quick") | {"methods": ["none", "topk"]}
    assert config.load(values, "c").runs
    values["timing"] |= {"together": ["topk", "lags"]}
    with pytest.raises(ConfigError, match=r"^c: timing.together: 'lags' is not a variant"):
        config.load(values, "c")


def test_the_name_of_a_run_of_many_variants_fits_into_a_file_name():
    values = read("quick") | {"network": "host"}
    names = [f"topk-{'long' * 14}{number:02}" for number in range(30)]
    values["variants"] = {name: {"method": "topk", "title": name} for name in names}
    values["timing"] |= {"together": names}
    values["models"] = {"resnet20": values["models"]["resnet20"] | {"topologies": ["allgather"]}}
    runs = [grid.timing(config.load(values | {"methods": ["none", *own]}, "c").values) for own in (names, names[:-1])]
    assert all(len(name) < 200 for one in runs for name in one) and not {*runs[0]} & {*runs[1]}


def test_a_run_of_other_variants_has_another_name():
    """A run that has finished never stands where another one is asked for, whatever happens to plans meanwhile."""
    values = read("quick") | {"network": "host"}
    names = [
        {name for name, spec in config.load(values | {"methods": methods}, "c").runs.items() if spec.kind == "timing"}
        for methods in (["none", "topk"], ["none", "topk", "dlgs"], ["none", "dlgs"])
    ]
    assert all(not one & other for one, other in combinations(names, 2))


def test_a_scheme_that_takes_turns_is_the_run_that_it_would_be_alone():
    values = config.load(read("quick"), "c").values
    for model in values["models"]:
        for topology in grid.topologies_of(values, model):
            run = grid.uncompressed_run(values, model, topology)
            alone = {spec.scheme.label: spec for spec in grid.timed_variants(values, run)}
            name = next(n for n in grid.timing(values) if n.startswith(f"timing/{model}-") and topology.name in n)
            spec = grid.timing(values)[name]
            members = {label: replace(one, measurement=alone[label].measurement)
                       for label, one in spec.members.items() if one.variant != "none"}  # fmt: skip
            assert members == alone


def test_a_models_budget_replaces_that_of_all_models_and_studies_have_none():
    values = read("quick")
    values["timing"] |= {"budget_s": 50}
    values["models"]["vgg16"] |= {"budget_s": 70}
    values["models"]["resnet50"].pop("budget_s", None)
    loaded = config.load(values, "c")
    budgets = {s.training.model: s.measurement.budget_s for s in loaded.runs.values() if s.kind == "timing"}
    assert (budgets["vgg16"], budgets["resnet50"]) == (70, 50)
    assert {s.measurement.budget_s for s in loaded.studies["rates"].values()} <= {0}


def test_a_variant_that_is_not_there_cannot_be_timed_with_others():
    values = read("quick")
    values["timing"] |= {"together": ["topk", "dlgss"]}
    with pytest.raises(ConfigError, match=r"c: timing\.together: 'dlgss' is not a variant.*dlgs"):
        config.load(values, "c")


def test_the_papers_recipe():
    runs = config.load(read("paper"), "paper").runs
    small, large = (runs[f"accuracy/{model}-dlgs-0.1-seed0"] for model in ("vgg16", "resnet50"))
    for spec, epochs, batch in ((small, 140, 32), (large, 80, 64)):
        assert (spec.training.epochs, spec.training.train_epochs, spec.training.batch) == (epochs, epochs, batch)
        assert spec.measurement.evaluations == epochs
    rates = [small.training.learning_rate(epoch) for epoch in (0, 79.9, 80, 120)]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.001])
    assert [large.training.learning_rate(e) for e in (0, 30, 60)] == pytest.approx([0.1, 0.01, 0.001])
    assert not large.training.stand_in and large.cluster.workers == 3


def test_a_short_run_scales_the_schedule():
    training = config.load(read("quick"), "quick").runs["accuracy/resnet20-none-seed0"].training
    assert training.learning_rate(training.train_epochs * 79 / 140) == pytest.approx(training.lr)
    assert training.learning_rate(training.train_epochs * 81 / 140) == pytest.approx(training.lr / 10)


def test_specs_survive_json():
    for spec in config.load(read("paper"), "paper").every.values():
        assert RunSpec.from_json(spec.to_json()) == spec


def test_the_defaults_of_a_spec_never_change():
    """Specs do not contain default values, so a new default would give old runs another meaning."""
    flat = RunSpec("accuracy").flat()
    assert {key: flat[key] for key in DEFAULTS} == DEFAULTS


DEFAULTS = {
    "model": "", "data": "cifar10", "stand_in": False, "batch": 32, "epochs": 140, "train_epochs": 140, "lr": 0.1,
    "lr_steps": (), "momentum": 0.9, "weight_decay": 1e-4, "warmup_epochs": 0, "seed": 0, "method": "none",
    "variant": "none", "options": {}, "topology": "allgather", "collective": "engine", "streams": {}, "wire": "indices",
    "bucket_bytes": 2**23, "planner": "layer", "groups": (), "ratios": (), "plans": {}, "engine": "horovod",
    "workers": 2, "threads": 1, "device": "cpu", "network": "host", "rates_mbit": (), "in_proportion": False,
    "width": 0.0, "budget_s": 0.0, "largest": {}, "launches": 1, "evaluations": 10,
    "test_samples": 10_000, "final_test_samples": 10_000, "blocks": 5, "repeats": 3, "largest_entries": 0,
}  # fmt: skip


def test_only_what_decides_a_run_is_in_its_spec():
    """The learning rate schedule does not change a timing run. The data folder and timeouts do not change any run."""
    values = read("paper") | {"network": "host"}
    before = config.load(values, "paper")
    recipe = values["models"]["vgg16"] | {"lr": 0.3, "lr_steps": [9], "warmup_epochs": 1, "train_epochs": 3}
    learnt = config.load(values | {"models": values["models"] | {"vgg16": recipe}}, "paper")
    changed = {name for name, spec in learnt.every.items() if before.every[name] != spec}
    assert changed == {name for name in before.every if name.startswith("accuracy/vgg16-")}
    elsewhere = {"data": {"root": "other", "imagenet": "other/imagenet"}, "hang_timeout_s": 5, "checkpoint_every_s": 5}
    assert config.load(values | elsewhere, "paper").every == before.every


def test_studies_are_every_planner_the_intervals_the_rates_and_the_servers():
    changes = {"network": "testbed", "launch": {}, "device": "cpu", "studies": {"refresh": {"intervals": [1, 8]}}}
    studies = config.load(read("paper") | changes, "paper").studies
    assert len(studies["planners"]) == 3 * 2  # models x ratios, DLGS alone
    assert len(studies["refresh"]) == 2 * 3  # intervals x seeds, at the smallest ratio
    assert {spec.training.model for spec in studies["refresh"].values()} == {"resnet20"}
    timed = [len({m.variant for m in spec.members.values()} - {"none"}) for spec in studies["rates"].values()]
    assert timed == [1 + 3] * 2 * 4 * 2  # (a dense and 3 sparse methods) x selections x rates x models
    assert {spec.cluster.rates_mbit for spec in studies["rates"].values()} >= {(100.0,) * 3}
    served = studies["servers"].values()
    sparse = [len({m.variant for m in spec.members.values()} - {"none"}) for spec in served]
    assert sparse == [3] * 4  # sparse methods x rates, of one model
    assert {(spec.cluster.workers, spec.topology.servers) for spec in served} == {(3, 1)}


@pytest.mark.parametrize("own", ["torch", "compiled"])
def test_a_variant_with_a_selection_of_its_own_leaves_the_study_of_rates_both_of_its_runs(own):
    values = read("paper") | {"network": "testbed", "launch": {}, "device": "cpu"}
    values["variants"] = {"topk": {"selection": own}}
    kinds = {}
    for spec in config.load(values, "paper").studies["rates"].values():
        (kind,) = {m.scheme.options["selection"] for m in spec.members.values() if m.variant == "dlgs"}
        kinds.setdefault((spec.training.model, spec.cluster.rates_mbit[0]), []).append(kind)
    assert kinds and all(sorted(found) == ["compiled", "torch"] for found in kinds.values())


def test_densities_are_drawn_of_every_sparsifier_with_or_without_timed_runs():
    runs = config.load(read("stall"), "stall").studies["densities"].values()
    assert {spec.kind for spec in runs} == {"accuracy"}
    assert {spec.variant for spec in runs} == set(read("stall")["methods"]) - {"none"}
    runs = config.load(read("paper"), "paper").studies["densities"].values()
    assert {spec.variant for spec in runs if spec.kind == "accuracy"} == {"topk", "lags", "dlgs"}
    timed = [spec for spec in runs if spec.kind == "timing"]
    assert timed and all("dlgs" in {m.variant for m in spec.members.values()} for spec in timed)


def test_studies_train_no_model_that_the_configuration_only_times():
    values, study = read("quick"), {"refresh": {"intervals": [1, 8]}, "sparse_dense": {"steps": 4}}
    values |= {"studies": values.get("studies", {}) | study, "network": "host"}
    assert [values["models"][name].get("train_epochs") for name in ("vgg16", "resnet50")] == [0, 0]
    values["models"] = {name: values["models"][name] for name in ("vgg16", "resnet20", "resnet50")}
    studies = config.load(values, "c").studies
    of_study = [
        spec for name, runs in studies.items() if name not in ("methods", "published") for spec in runs.values()
    ]
    trained = [spec.training for spec in of_study if spec.kind == "accuracy"]
    assert {training.model for training in trained} == {"resnet20"} and all(t.learning_rate(0.0) > 0 for t in trained)
    assert studies["refresh"] and studies["sparse_dense"]
    assert {spec.training.model for spec in studies["densities"].values() if spec.kind == "timing"} == {"resnet20"}
    del values["models"]["resnet20"]
    with pytest.raises(ConfigError, match="nothing is trained"):
        config.load(values, "c")


def test_without_a_testbed_no_rates_are_swept():
    studies = config.load(read("paper"), "paper").studies
    assert not studies["rates"] and not studies["servers"]


def test_a_plan_is_read_where_layers_are_timed_merged_by_costs_or_ratios_are_chosen():
    for planner, methods, expected in [
        ("layer", ["none", "lags", "dlgs"], set()),
        ("paper", ["none", "lags", "dlgs"], {"none", "dlgs"}),  # uncompressed is timed with the planner's groups too
        ("size", ["none", "lags", "dlgs"], set()),
        ("layer", ["none", "lags_adaptive", "dlgs"], {"lags_adaptive"}),
    ]:
        runs = config.load(read("paper") | {"planner": planner, "methods": methods}, "paper").runs
        timed = {grid.timing_name(one): one for s in runs.values() if s.kind == "timing" for one in s.members.values()}
        planned = {name: grid.plan_names(spec, runs) for name, spec in runs.items()}
        assert {timed[plan].scheme.method for plans in planned.values() for plan in plans} == expected
        for name, plans in planned.items():  # an accuracy run that needs one reads the plan of its timed scheme
            if runs[name].kind == "accuracy":
                assert len(plans) == (grid.planned_by(runs[name]) is not None)
                for plan in plans:
                    assert timed[plan].training.model == runs[name].training.model
                    assert timed[plan].ratio == runs[name].ratio


def test_imagenet_replaces_its_stand_in_where_it_is_configured():
    without = config.load(trained(), "quick").runs["accuracy/resnet50-none-seed0"].training
    assert (without.data, without.stand_in) == ("cifar10", True)
    given = config.load(trained(network="host", data={"root": "data", "imagenet": "some/folder"}), "quick").runs
    here = config.load(trained(network="host"), "quick").runs
    assert given["accuracy/resnet50-none-seed0"].training.data == "imagenet100"
    name = "timing/resnet50-cast-topk-lags-dlgs-0.1-0.01-allgather-2workers-host"
    timed = [runs[name].training for runs in (here, given)]
    assert [(one.data, one.stand_in, one.batch) for one in timed] == [("images224", True, 8), ("imagenet100", False, 8)]


def test_variants_are_runs_of_their_own_with_names_and_titles():
    values = trained(
        network="host",
        methods=["none", "topk", "topk-plain", "lean"],
        variants={
            "topk-plain": {"method": "topk", "error_feedback": False},
            "lean": {"method": "dlgs", "ratio": 0.05, "title": "lean DLGS"},
        },
    )
    loaded = config.load(values, "c")
    titles = {name: one.title for name, one in variants.chosen(loaded.values).items()}
    assert titles == {
        "none": "uncompressed",
        "topk": "Top-K",
        "topk-plain": "Top-K (error_feedback=False)",
        "lean": "lean DLGS",
    }
    plain = loaded.runs["accuracy/vgg16-topk-plain-0.1-seed0"]
    assert (plain.variant, plain.scheme.method) == ("topk-plain", "topk")
    assert plain.scheme.options == {"ratio": 0.1, "selection": "compiled", "error_feedback": False}
    assert loaded.runs["accuracy/vgg16-topk-0.1-seed0"].scheme.variant == ""
    every = [one for spec in loaded.every.values() for one in spec.members.values()]
    assert {one.ratio for one in every if one.variant == "lean"} == {0.05}  # not those of the configuration
    values |= {"studies": {"methods": {"methods": ["topk"]}}}  # unlike the other studies, not of the methods above
    loaded, without = (config.load(values | {"methods": m}, "c") for m in (values["methods"], ["none", "topk", "lean"]))
    others = {n: s for n, s in loaded.every.items() if s.variant != "topk-plain" and "topk-plain" not in n}
    trial = {
        n for n, s in others.items() if "topk-plain" in "".join(s.scheme.timed_with)
    }  # it takes its turns in these
    assert trial and all(n.startswith("trials/") for n in trial)
    assert {n: s for n, s in others.items() if n not in trial} == {n: without.every[n] for n in others.keys() - trial}


def test_a_plain_methods_parameters_are_those_of_its_default_variant():
    loaded = config.load(trained(variants={"dlgs": {"refresh_every": 8}}), "c")
    assert loaded.runs["accuracy/vgg16-dlgs-0.1-seed0"].scheme.options["refresh_every"] == 8
    assert variants.chosen(loaded.values)["dlgs"].title == "DLGS (refresh_every=8)"


@pytest.mark.parametrize(
    "name, settings, changed",
    [
        ("dlgs", {}, False),
        ("dlgs", {"title": "ours", "ratio": 0.2}, False),
        ("dlgs", {"refresh_every": 32}, False),  # the default
        ("dlgs", {"refresh_every": 8}, True),
        ("topk", {"error_feedback": False}, True),
        ("dlgs", {"planner": "all"}, True),
        ("mine", {"method": "dlgs"}, True),  # a kept run of this name is of another configuration
    ],
)
def test_a_variant_is_changed_if_its_parameters_are_not_the_defaults(name, settings, changed):
    assert variants.variant(name, settings).changed == changed


def test_all_methods_are_every_file_and_every_variant():
    loaded = config.load(read("smoke") | {"variants": {"lean": {"method": "dlgs", "ratio": 0.05}}}, "c")
    assert next(iter(variants.chosen(loaded.values))) == "none"
    assert set(variants.chosen(loaded.values)) == {*plugins.names("methods"), "lean"}


def test_a_collective_is_in_the_name_of_what_it_times_and_not_in_a_servers():
    values = read("paper") | {"collective": "ring", "network": "testbed", "device": "cpu", "launch": {}}
    loaded = config.load(values, "c")
    assert {spec.scheme.collective for spec in loaded.runs.values()} == {"ring"}
    assert "timing/vgg16-cast-topk-lags-dlgs-0.1-0.01-allgather-ring-3workers-proportional" in loaded.runs
    assert {spec.scheme.collective for spec in loaded.studies["servers"].values()} == {"engine"}


def test_timing_runs_and_their_calibrations_may_have_an_engine_of_their_own():
    def engines(values: dict) -> dict[str, set[str]]:
        found = {}
        for name, spec in config.load(values, "c").every.items():
            found.setdefault(name.split("/")[0], set()).add(spec.cluster.engine)
        return found

    values = read("quick") | {"engine": "horovod"}
    found = engines(values | {"timing": values["timing"] | {"engine": "torch_dist"}})
    assert found.pop("trials") == found.pop("accuracy") == {"horovod"} and set().union(*found.values()) == {
        "torch_dist"
    }
    assert {"timing", "layers", "exchanges", "planners"} <= set(found)
    assert set().union(*engines(read("paper")).values()) == {"horovod"}


def test_figures_are_the_papers_for_its_models_and_named_for_others():
    papers = {("vgg16", "train_accuracy"): 7, ("vgg16", "train_loss"): 8, ("vgg16", "breakdown"): 12}
    drawn = figures.of_models(["vgg16", "transformer"], papers, timed=True)
    assert [(name, figure.model, figure.value) for name, figure in drawn.items()] == [
        ("figure07", "vgg16", "train_accuracy"),
        ("figure08", "vgg16", "train_loss"),
        ("figure12", "vgg16", "breakdown"),
        ("accuracy-transformer", "transformer", "train_accuracy"),
        ("loss-transformer", "transformer", "train_loss"),
        ("perplexity-transformer", "transformer", "test_perplexity"),
        ("breakdown-transformer", "transformer", "breakdown"),
    ]
    assert drawn["figure07"].caption == "Figure 7: training accuracy of VGG16."
    assert drawn["loss-transformer"].caption == "Training loss of Transformer."


def test_a_fourth_model_has_every_run_that_the_papers_have():
    values = trained(network="host")
    values["models"] |= {"transformer": {"batch": 8, "epochs": 1, "lr": 0.1}}
    loaded = config.load(values, "c")
    per_model = {
        model: [n.replace(model, "") for n, s in loaded.runs.items() if s.training.model == model]
        for model in ("vgg16", "transformer")
    }
    assert per_model["vgg16"] == per_model["transformer"]
    spec = loaded.runs["timing/transformer-cast-topk-lags-dlgs-0.1-0.01-allgather-2workers-host"]
    assert (spec.training.data, spec.training.stand_in) == ("text", False)
    assert "layers/transformer-2workers" in loaded.calibrations


@pytest.mark.parametrize("epochs, points", [(0.3, 1), (0.5, 1), (1, 1), (2, 2), (30, 30)])
def test_a_curve_by_epochs_has_a_point_at_the_end_of_less_than_one(epochs, points):
    values = read("long_training")
    values["models"] = {"vgg16": values["models"]["vgg16"] | {"train_epochs": epochs}}
    assert {spec.measurement.evaluations for spec in config.load(values, "c").runs.values()} == {points}


def test_the_check_of_advice_runs_all_variants_in_turns_over_networks_that_were_not_calibrated():
    networks = [{"rate_mbit": 100}, {"workers": 3, "rate_mbit": 300, "latency_ms": 2}]
    values = read("advise") | {"network": "testbed"}
    values["studies"] = {"advise": {"check": networks, "models": ["vgg16"]}}
    runs = config.load(values, "c").studies["advise"]
    assert [spec.cluster.rates_mbit for spec in runs.values()] == [(100.0,) * 2, (300.0,) * 3]
    assert [spec.cluster.latency_ms for spec in runs.values()] == [0.0, 2.0]
    for spec in runs.values():
        assert {one.variant for one in spec.members.values()} == set(values["methods"])
    assert not config.load(values | {"network": "host"}, "c").studies["advise"]
    halving = config.load(values | {"collective": "halving-doubling"}, "c").studies["advise"]
    assert [spec.cluster.workers for spec in halving.values()] == [2]  # it refuses 3


@pytest.mark.parametrize(
    "wrong, words",
    [({"workers": 1}, "workers"), ({"check": [{"rate_mbit": 0}]}, "rate_mbit"), ({"latency_ms": -1}, "latency_ms")],
)
def test_advice_about_nonsense_is_refused_in_one_line(wrong, words):
    with pytest.raises(ConfigError, match=words):
        config.load(read("advise") | {"studies": {"advise": wrong}}, "c")


def test_what_is_left_out_of_training_is_timed_all_the_same():
    values = trained(network="host")
    before = config.load(values, "c").runs
    values["accuracy"] |= {"leave_out": ["cast", "lags"]}
    values["models"]["vgg16"] |= {"train_epochs": 0}
    after = config.load(values, "c").runs
    gone = {name for name in before if name not in after}
    assert {name.split("/")[0] for name in gone} == {"accuracy"}
    assert gone == {n for n, s in before.items() if s.kind == "accuracy" and (s.variant == "lags" or "vgg16" in n)}
    values["accuracy"] |= {"leave_out": ["casts"]}
    with pytest.raises(ConfigError, match=r"c: accuracy.leave_out: 'casts' is not a variant .did you mean 'cast'"):
        config.load(values, "c")
    values["accuracy"] |= {"leave_out": list(values["methods"])}
    with pytest.raises(ConfigError, match="c: accuracy: nothing is trained"):
        config.load(values, "c")


def test_a_budget_of_training_is_for_models_whose_steps_are_calibrated():
    values = trained(network="host")
    trainings = [spec for spec in config.load(values, "c").runs.values() if spec.kind == "accuracy"]
    assert {s.training.model for s in trainings if s.training.most_epochs} == {"resnet20", "vgg16"}
    assert {s.measurement.budget_s for s in trainings if s.training.most_epochs} == {values["accuracy"]["budget_s"]}
    values["timing"] |= {"ratios": []}
    assert not [s for s in config.load(values, "c").runs.values() if s.training.most_epochs]


def test_a_variant_may_merge_layers_otherwise_than_the_configuration():
    values = trained(
        network="host", methods=["none", "dlgs", "each"], variants={"each": {"method": "dlgs", "planner": "layer"}}
    )
    runs = config.load(values, "c").runs
    planners = {n: runs[f"accuracy/vgg16-{n}-0.1-seed0"].scheme.planner for n in ("dlgs", "each")}
    assert planners == {"dlgs": "size", "each": "layer"}
    members = [m for s in runs.values() if s.kind == "timing" for m in s.members.values() if m.variant == "each"]
    assert members and {member.scheme.planner for member in members} == {"layer"}
    assert not any(grid.planned_by(member) for member in members)
    values["variants"] = {"each": {"method": "topk", "planner": "layer"}}
    with pytest.raises(ConfigError, match=r"variants.each.planner: layer has no effect, since topk does not merge"):
        config.load(values, "c")


def test_planners_are_compared_with_every_bucketing_of_uncompressed():
    loaded = config.load(read("quick") | {"network": "host", "planner": "exact"}, "c")
    for spec in loaded.studies["planners"].values():
        dense = [label for label, member in spec.members.items() if member.variant == "none"]
        assert dense == ["none", "none-256kib", "none-planned"] and spec.variant == "dlgs"
        own, planned = grid.plan_names(spec, loaded.runs)
        assert "-dlgs-" in own and "-none-planned-" in planned
        assert not any(member.scheme.timed_with for member in spec.members.values())


def test_a_model_is_timed_with_further_numbers_of_workers_over_all_gather_alone():
    values = read("quick") | {"network": "testbed"}
    before = config.load(values, "c")
    values["models"]["resnet20"] |= {"more_workers": [3, 2]}
    after = config.load(values, "c")
    new = {name: spec for name, spec in after.runs.items() if name not in before.runs}
    assert [(s.kind, s.training.model, s.topology.name, s.cluster.workers) for s in new.values()] == [
        ("timing", "resnet20", "allgather", 3)
    ]
    assert {name: after.runs[name] for name in before.runs} == before.runs
    assert grid.processes(after.values) == 4  # three workers and a server
    values["models"]["resnet20"] |= {"more_workers": [5]}
    five = config.load(values, "c")
    assert grid.processes(five.values) == 5 and "layers/resnet20-5workers" in five.calibrations
    for study in ("rates", "selections", "servers"):
        assert five.studies[study] == before.studies[study]
    values |= {"collective": "halving-doubling"}
    values["models"]["resnet20"] |= {"topologies": ["allgather"]}
    expected = r"halving-doubling does not support 5 workers.*models\.resnet20\.more_workers"
    with pytest.raises(ConfigError, match=expected):
        config.load(values, "c")
