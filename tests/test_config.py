"""Configurations: what they expand to, and one line for every mistake."""

import json
import subprocess
import sys

import pytest
import yaml
from conftest import ROOT, copy_project, snakemake

from harness import plugins
from harness.config import figures, grid, variants
from harness.config import load as config
from harness.spec import RunSpec


def read(name: str) -> dict:
    return yaml.safe_load((ROOT / "config" / f"{name}.yaml").read_text())


@pytest.mark.parametrize("name", ["quick", "paper"])
def test_the_papers_grid_is_12_accuracy_runs_per_seed_and_7_timing_runs_per_model_and_topology(name):
    values = read(name)
    runs = config.load(values, name).runs
    kinds = [run.split("/")[0] for run in runs]
    assert kinds.count("accuracy") == 12 * len(values["seeds"])
    topologies = [t for m in values["models"].values() for t in m.get("topologies", values["topologies"])]
    assert kinds.count("timing") == 7 * len(topologies)


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
    """Specs do not write them down: another default would give old runs another meaning."""
    flat = RunSpec("accuracy").flat()
    assert {key: flat[key] for key in DEFAULTS} == DEFAULTS


DEFAULTS = {
    "model": "", "data": "cifar10", "stand_in": False, "batch": 32, "epochs": 140, "train_epochs": 140, "lr": 0.1,
    "lr_steps": (), "momentum": 0.9, "weight_decay": 1e-4, "warmup_epochs": 0, "seed": 0, "method": "none",
    "variant": "none", "options": {}, "topology": "allgather", "collective": "engine", "wire": "indices",
    "bucket_bytes": 2**23, "planner": "layer", "groups": (), "ratios": (), "plans": {}, "engine": "horovod",
    "workers": 2, "threads": 1, "device": "cpu", "network": "host", "rates_mbit": (), "in_proportion": False,
    "width": 0.0, "limit_s": 0.0, "launches": 1, "evaluations": 10,
    "test_samples": 10_000, "final_test_samples": 10_000, "blocks": 5, "repeats": 3, "largest_entries": 0,
}  # fmt: skip


def test_only_what_decides_a_run_is_in_its_spec():
    """The schedule decides no timing run; where the data are and how long is waited decide no run at all."""
    values = read("paper") | {"network": "host"}
    before = config.load(values, "paper")
    recipe = values["models"]["vgg16"] | {"lr": 0.3, "lr_steps": [9], "warmup_epochs": 1, "train_epochs": 3}
    learnt = config.load(values | {"models": values["models"] | {"vgg16": recipe}}, "paper")
    changed = {name for name, spec in learnt.every.items() if before.every[name] != spec}
    assert changed == {name for name in before.every if name.startswith("accuracy/vgg16-")}
    elsewhere = {"data": {"root": "other", "imagenet": "other/imagenet"}, "hung_after_s": 5}
    assert config.load(values | elsewhere, "paper").every == before.every


def test_studies_are_every_planner_the_intervals_the_rates_and_the_servers():
    changes = {"network": "testbed", "device": "cpu", "studies": {"refresh": {"intervals": [1, 8]}}}
    studies = config.load(read("paper") | changes, "paper").studies
    assert len(studies["planners"]) == 3 * 2  # models x ratios, DLGS alone
    assert len(studies["refresh"]) == 2 * 3  # intervals x seeds, at the smallest ratio
    assert {spec.training.model for spec in studies["refresh"].values()} == {"resnet20"}
    assert len(studies["rates"]) == 4 * 4 * 2  # methods x rates x models
    assert {spec.cluster.rates_mbit for spec in studies["rates"].values()} >= {(100.0,) * 3}
    served = studies["servers"].values()
    assert len(served) == 4 * 4  # methods x rates, of one model
    assert {(spec.cluster.workers, spec.topology.servers) for spec in served} == {(3, 1)}


def test_without_a_testbed_no_rates_are_swept():
    studies = config.load(read("paper"), "paper").studies
    assert not studies["rates"] and not studies["servers"]


def test_a_plan_is_read_where_layers_are_timed_merged_by_costs_or_ratios_are_chosen():
    for planner, methods, expected in [
        ("layer", ["none", "lags", "dlgs"], set()),
        ("paper", ["none", "lags", "dlgs"], {"dlgs"}),
        ("size", ["none", "lags", "dlgs"], set()),
        ("layer", ["none", "lags_adaptive", "dlgs"], {"lags_adaptive"}),
    ]:
        runs = config.load(read("paper") | {"planner": planner, "methods": methods}, "paper").runs
        planned = {name: grid.plan_name(spec, runs) for name, spec in runs.items() if grid.planned_by(spec)}
        assert {runs[name].scheme.method for name in planned} == expected
        for name, plan in planned.items():  # an accuracy run that needs one reads the plan of its timing run
            assert runs[f"timing/{plan}"].training.model == runs[name].training.model
            assert runs[f"timing/{plan}"].ratio == runs[name].ratio


def test_imagenet_replaces_its_stand_in_where_it_is_configured():
    without = config.load(read("quick"), "quick").runs["accuracy/resnet50-none-seed0"].training
    assert (without.data, without.stand_in) == ("cifar10", True)
    values = read("quick") | {"network": "host", "data": {"root": "data", "imagenet": "some/folder"}}
    given = config.load(values, "quick").runs
    here = config.load(read("quick") | {"network": "host"}, "quick").runs
    assert given["accuracy/resnet50-none-seed0"].training.data == "imagenet100"
    timed = [runs["timing/resnet50-none-allgather-2workers-host"].training for runs in (here, given)]
    assert [(one.data, one.stand_in, one.batch) for one in timed] == [("images224", True, 8), ("imagenet100", False, 8)]


def test_variants_are_runs_of_their_own_with_names_and_titles():
    values = read("quick") | {
        "network": "host",
        "methods": ["none", "topk", "topk-plain", "lean"],
        "variants": {
            "topk-plain": {"method": "topk", "error_feedback": False},
            "lean": {"method": "dlgs", "ratio": 0.05, "title": "lean DLGS"},
        },
    }
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
    assert plain.scheme.options == {"ratio": 0.1, "selection": "fast", "error_feedback": False}
    assert loaded.runs["accuracy/vgg16-topk-0.1-seed0"].scheme.variant == ""
    lean = [spec for name, spec in loaded.every.items() if spec.variant == "lean"]
    assert {spec.ratio for spec in lean} == {0.05}  # neither accuracy.ratios nor timing.ratios
    without = config.load(values | {"methods": ["none", "topk", "lean"]}, "c")
    assert {n: s for n, s in loaded.every.items() if s.variant != "topk-plain"} == without.every


def test_a_plain_methods_parameters_are_those_of_its_default_variant():
    loaded = config.load(read("quick") | {"variants": {"dlgs": {"refresh_every": 8}}}, "c")
    assert loaded.runs["accuracy/vgg16-dlgs-0.1-seed0"].scheme.options["refresh_every"] == 8
    assert variants.chosen(loaded.values)["dlgs"].title == "DLGS (refresh_every=8)"


def test_all_methods_are_every_file_and_every_variant():
    loaded = config.load(read("smoke") | {"variants": {"lean": {"method": "dlgs", "ratio": 0.05}}}, "c")
    assert next(iter(variants.chosen(loaded.values))) == "none"
    assert set(variants.chosen(loaded.values)) == {*plugins.names("methods"), "lean"}


def test_a_collective_is_in_the_name_of_what_it_times_and_not_in_a_servers():
    values = read("paper") | {"collective": "ring", "network": "testbed", "device": "cpu"}
    loaded = config.load(values, "c")
    assert {spec.scheme.collective for spec in loaded.runs.values()} == {"ring"}
    assert "timing/vgg16-none-allgather-ring-3workers-proportional" in loaded.runs
    assert {spec.scheme.collective for spec in loaded.studies["servers"].values()} == {"engine"}


def test_figures_are_the_papers_for_its_models_and_named_for_others():
    papers = {("vgg16", "train_accuracy"): 7, ("vgg16", "train_loss"): 8, ("vgg16", "breakdown"): 12}
    drawn = figures.of_models(["vgg16", "transformer"], papers)
    assert [(name, figure.model, figure.value) for name, figure in drawn.items()] == [
        ("figure07", "vgg16", "train_accuracy"),
        ("figure08", "vgg16", "train_loss"),
        ("figure12", "vgg16", "breakdown"),
        ("accuracy-transformer", "transformer", "train_accuracy"),
        ("loss-transformer", "transformer", "train_loss"),
        ("breakdown-transformer", "transformer", "breakdown"),
    ]
    assert drawn["figure07"].about == "Figure 7: training accuracy of VGG16."
    assert drawn["loss-transformer"].about == "Training loss of Transformer."


def test_a_fourth_model_has_every_run_that_the_papers_have():
    values = read("quick") | {"network": "host"}
    values["models"] |= {"transformer": {"batch": 8, "epochs": 1, "lr": 0.1}}
    loaded = config.load(values, "c")
    per_model = {
        model: [n.replace(model, "") for n, s in loaded.runs.items() if s.training.model == model]
        for model in ("vgg16", "transformer")
    }
    assert per_model["vgg16"] == per_model["transformer"]
    spec = loaded.runs["timing/transformer-dlgs-0.1-allgather-2workers-host"]
    assert (spec.training.data, spec.training.stand_in) == ("text", False)
    assert "layers/transformer-2workers" in loaded.calibrations


RECIPE = {"batch": 3, "epochs": 1, "lr": 1}

MISTAKES = {
    "workers: -1": {"workers": -1},
    "did you mean 'dlgs'": {"methods": ["dgls"]},
    "unknown key 'metods' .did you mean 'methods'": {"metods": 1},
    r"ratios.0: 1.5 is not valid; give a ratio k/d in \(0, 1\]": {"accuracy": {"ratios": [1.5]}},
    r"ratios.1: 0 is not valid; give a ratio k/d in \(0, 1\]": {"timing": {"ratios": [0.1, 0]}},
    "unknown key .refrsh.*known: .*refresh_every": {"variants": {"dlgs": {"refrsh": 3}}},
    "refresh_every: 'x' is not valid; give a value of type int": {"variants": {"dlgs": {"refresh_every": "x"}}},
    "refresh_every: 0 is not valid; give a value >= 1": {"variants": {"dlgs": {"refresh_every": 0}}},
    "density_cap: 0 is not valid; give a value > 0": {"variants": {"dlgs": {"density_cap": 0}}},
    "error_feedback: 1 is not valid; give a value of type bool": {"variants": {"topk": {"error_feedback": 1}}},
    "refresh: 'often' is not valid; give one of: before, literal": {"variants": {"dlgs": {"refresh": "often"}}},
    r"variants.topk.ratio: 2 is not valid; give a ratio k/d in \(0, 1\]": {"variants": {"topk": {"ratio": 2}}},
    "variants.sgd: no file methods/sgd.py": {"variants": {"sgd": {}}},
    "variants.x: no file methods/topkk.py .did you mean 'topk'": {"variants": {"x": {"method": "topkk"}}},
    "variants: 'Top K' is not valid; give a name of lower-case": {"variants": {"Top K": {"method": "topk"}}},
    "variants.none: methods/none.py has this name": {"variants": {"none": {"method": "topk"}}},
    "variants.again.title: 'Top-K' is the title of topk too": {"variants": {"again": {"method": "topk"}}},
    "variants.dlgs-fast: runs of dlgs may have this name": {
        "variants": {"dlgs-fast": {"method": "dlgs", "title": "x"}}
    },
    "variants.topk-1: runs of topk may have this name": {"variants": {"topk-1": {"method": "topk", "ratio": 0.2}}},
    "methods: no file methods/lean.py and no variant 'lean'": {"methods": ["none", "lean"]},
    "studies.refresh.intervals.0: 0 is not valid; give a refresh": {"studies": {"refresh": {"intervals": [0]}}},
    "collective: no file harness/comm/collectives/rings.py .did you mean 'ring'": {"collective": "rings"},
    "collective: ring adds up among equals, ps-weights on a server": {"collective": "ring"},
    "hung_after_s: 0 is not valid; give seconds": {"hung_after_s": 0},
    "no file models/resnet21.py .did you mean 'resnet20'": {"models": {"resnet21": RECIPE}},
    "models.resnet20.batch: -3 is not valid": {"models": {"resnet20": RECIPE | {"batch": -3}}},
    "'lr' is missing; give learning rate": {"models": {"resnet20": {"batch": 3, "epochs": 1}}},
    "models.resnet20.data: 'mnist' is not valid; give one of: cifar10": {
        "models": {"resnet20": RECIPE | {"data": "mnist"}}
    },
    "data.imagenet: empty, but resnet50 wants imagenet100": {"models": {"resnet50": RECIPE}},
    "accuracy.ratios: lags_adaptive has no plan for 0.5; give only ratios of timing.ratios": {
        "methods": ["lags_adaptive"],
        "accuracy": {"ratios": [0.1, 0.5]},
    },
    "wire: smallest is for device: cpu; give indices": {"wire": "smallest", "device": "cuda"},
    "with its plan for allgather; add it, or leave lags_adaptive out": {
        "methods": ["lags_adaptive"],
        "topologies": ["ps-weights"],
    },
    "testbed.host_rates_mbit: for links of one rate; give testbed.rate_mbit in Mbit/s": {
        "network": "testbed",
        "device": "cpu",
        "testbed": {"host_rates_mbit": {0: 100}},
    },
    "topologies.0: 'ps' is not valid; give one of: allgather, ps-weights, ps-sparse": {"topologies": ["ps"]},
    "engine: 'mpi' is not valid; give one of: horovod, torch_dist": {"engine": "mpi"},
}


@pytest.mark.parametrize("expected", MISTAKES)
def test_a_mistake_is_one_line_that_says_where_what_and_what_would_be_right(expected):
    with pytest.raises(config.ConfigError, match=expected) as error:
        config.load(read("quick") | MISTAKES[expected], "config/mine.yaml")
    assert str(error.value).startswith("config/mine.yaml: ") and "\n" not in str(error.value)


def test_a_server_is_refused_what_it_cannot_answer_or_leaves_it_out(monkeypatch):
    described = plugins.describe

    def without_one_sum(kind, name):
        return described(kind, name) | ({"one_sum": None} if name == "lags" else {})

    monkeypatch.setattr(plugins, "describe", without_one_sum)
    values = read("quick") | {"topologies": ["allgather", "ps-sparse"]}
    with pytest.raises(config.ConfigError, match="ps-sparse cannot answer lags"):
        config.load(values, "c")
    runs = config.load(values | {"methods": "all"}, "c").runs
    timed = [run for run in runs if run.startswith("timing/vgg16-lags-")]
    assert timed and all("-allgather-" in run for run in timed)
    assert any(run.startswith("timing/vgg16-dlgs-0.1-ps-sparse-3workers") for run in runs)


def test_the_machine_is_checked_for_gpus_and_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))  # no nvidia-smi
    values = config.load(read("quick") | {"device": "cuda"}, "c").values
    values["models"]["resnet20"].pop("topologies")
    with pytest.raises(config.ConfigError, match="2 workers needs 2 GPUs, this machine shows 0"):
        config.check_machine(values, "c")
    values = config.load(read("quick") | {"device": "cuda"}, "c").values
    with pytest.raises(config.ConfigError, match="3 workers and a server needs 4 GPUs"):
        config.check_machine(values, "c")
    values = config.load(read("quick") | {"data": {"root": "data", "imagenet": "no/such"}}, "c").values
    with pytest.raises(config.ConfigError, match="no folder no/such/train/n0"):
        config.check_machine(values, "c")


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["--config", "seeds=[0, -1]"], "error: config/quick.yaml and --config: seeds.1: -1 is not valid"),
        (["--config", "workers=-1"], "error: config/quick.yaml and --config: workers: -1 is not valid"),
        (
            ["--config", "device=cuda"],
            "error: config/quick.yaml and --config: device: cuda with 3 workers and a server needs 4 GPUs",
        ),
    ],
)
def test_the_workflow_stops_before_any_run_without_a_traceback(tmp_path, environment, arguments, expected):
    if "cuda" in expected and __import__("torch").cuda.is_available():
        pytest.skip("this machine has GPUs")
    output = f"output={{results: {tmp_path}, figures: {tmp_path}, report: {tmp_path}/r}}"
    done = snakemake(ROOT, environment, "--nolock", *arguments, output)
    said = done.stdout + done.stderr
    assert done.returncode != 0
    assert next(line for line in said.splitlines() if line.startswith("error: ")).startswith(expected), said
    assert "Traceback" not in said and not list(tmp_path.glob("runs/*/*/*"))


@pytest.mark.parametrize(
    "file, source, settings, expected",
    [
        ("methods/broken.py", "import no_such_library", "methods=[none, broken]", "no_such_library"),
        ("methods/broken.py", "import no_such_library", "methods=all", "methods/broken.py cannot be used"),
        ("methods/broken.py", "x = 1", "methods=[none, broken]", "must define one Method, found 0"),
        ("models/broken.py", "TITLE = 'B'", "models={broken: {batch: 2, epochs: 1, lr: 1}}", "DATA is missing"),
    ],
)
def test_a_plug_in_that_cannot_be_used_is_one_line(tmp_path, file, source, settings, expected):
    project = copy_project(tmp_path)
    (project / file).write_text(source)
    key, _, value = settings.partition("=")
    program = (
        "import json, sys, yaml\nfrom harness.config import load\n"
        "values = yaml.safe_load(open('config/smoke.yaml')) | json.loads(sys.argv[1])\n"
        "try:\n    load.load(values, 'mine.yaml')\nexcept load.ConfigError as error:\n    print(error)"
    )
    changed = json.dumps({key: yaml.safe_load(value)})
    done = subprocess.run([sys.executable, "-c", program, changed], cwd=project, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert line.startswith(f"mine.yaml: {file.split('/')[0]}: {file} cannot be used: ") and expected in line
