"""Configurations: what they expand to, and one line for every mistake."""

import pytest
import yaml
from conftest import ROOT, snakemake

from harness import plugins
from harness.config import grid
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
    small, large = runs["accuracy/vgg16-dlgs-0.1-seed0"], runs["accuracy/resnet50-dlgs-0.1-seed0"]
    assert (small.epochs, small.train_epochs, small.batch, small.evaluations) == (140, 140, 32, 140)
    assert (large.epochs, large.train_epochs, large.batch, large.evaluations) == (80, 80, 64, 80)
    assert [small.learning_rate(e) for e in (0, 79.9, 80, 120)] == pytest.approx([0.1, 0.1, 0.01, 0.001])
    assert [large.learning_rate(e) for e in (0, 30, 60)] == pytest.approx([0.1, 0.01, 0.001])
    assert not large.stand_in and large.workers == 3


def test_a_short_run_scales_the_schedule():
    spec = config.load(read("quick"), "quick").runs["accuracy/resnet20-none-seed0"]
    assert spec.learning_rate(spec.train_epochs * 79 / 140) == pytest.approx(spec.lr)
    assert spec.learning_rate(spec.train_epochs * 81 / 140) == pytest.approx(spec.lr / 10)


def test_specs_survive_json():
    loaded = config.load(read("paper"), "paper")
    for spec in [*loaded.runs.values(), *loaded.calibrations.values()]:
        assert RunSpec.from_json(spec.to_json()) == spec
    for spec in (spec for study in loaded.studies.values() for spec in study.values()):
        assert RunSpec.from_json(spec.to_json()) == spec


def test_studies_are_every_planner_the_intervals_the_rates_and_the_servers():
    changes = {"network": "testbed", "device": "cpu", "studies": {"refresh_every": [1, 8]}}
    studies = config.load(read("paper") | changes, "paper").studies
    assert len(studies["planners"]) == 3 * 2  # models x ratios, DLGS alone
    assert len(studies["refresh"]) == 2 * 3  # intervals x seeds, at the smallest ratio
    assert {spec.model for spec in studies["refresh"].values()} == {"resnet20"}
    assert len(studies["rates"]) == 4 * 4 * 2  # methods x rates x models
    assert {spec.rates_mbit for spec in studies["rates"].values()} >= {(100.0,) * 3}
    assert len(studies["servers"]) == 21
    assert {(s.workers, s.servers, len(s.rates_mbit)) for s in studies["servers"].values()} == {(3, 1, 4)}


def test_without_a_testbed_no_rates_are_swept():
    assert not config.load(read("paper"), "paper").studies["rates"]


def test_a_plan_is_read_where_layers_are_merged_or_ratios_are_chosen():
    for planner, adaptive, expected in [("layer", False, set()), ("paper", False, {"dlgs"}), ("layer", True, {"lags"})]:
        values = read("paper") | {"planner": planner, "method_options": {"lags": {"adaptive": adaptive}}}
        runs = config.load(values, "paper").runs.values()
        assert {spec.method for spec in runs if grid.needs_plan(spec)} == expected


def test_imagenet_replaces_its_stand_in_where_it_is_configured():
    without = config.load(read("quick"), "quick").runs["accuracy/resnet50-none-seed0"]
    given = config.load(
        read("quick") | {"network": "host", "data": {"root": "data", "imagenet": "some/folder"}}, "quick"
    )
    assert (without.data, without.stand_in) == ("cifar10", True)
    assert (
        given.runs["accuracy/resnet50-none-seed0"].data,
        given.runs["timing/resnet50-none-allgather-2workers-host"].stand_in,
    ) == (
        "imagenet100",
        False,
    )


MISTAKES = {
    "workers: -1": {"workers": -1},
    "did you mean 'dlgs'": {"methods": ["dgls"]},
    "unknown key 'metods' .did you mean 'methods'": {"metods": 1},
    r"ratios.0: 1.5 is not valid; give a ratio k/d in \(0, 1\]": {"accuracy": {"ratios": [1.5]}},
    r"ratios.1: 0 is not valid; give a ratio k/d in \(0, 1\]": {"timing": {"ratios": [0.1, 0]}},
    "unknown key .refrsh.*known: .*refresh_every": {"method_options": {"dlgs": {"refrsh": 3}}},
    "refresh_every: 'x' is not valid; give a value of type int": {"method_options": {"dlgs": {"refresh_every": "x"}}},
    "refresh_every: 0 is not valid; give a value >= 1": {"method_options": {"dlgs": {"refresh_every": 0}}},
    "density_cap: 0 is not valid; give a value > 0": {"method_options": {"dlgs": {"density_cap": 0}}},
    "studies.refresh_every.0: 0 is not valid; give a refresh interval": {"studies": {"refresh_every": [0]}},
    "refresh: 'often' is not valid; give one of: before, literal": {"method_options": {"dlgs": {"refresh": "often"}}},
    "method_options: no file methods/sgd.py": {"method_options": {"sgd": {}}},
    "no file models/resnet21.py .did you mean 'resnet20'": {
        "models": {"resnet21": {"data": "cifar10", "batch": 3, "epochs": 1, "lr": 1}}
    },
    "models.resnet20.batch: -3 is not valid": {
        "models": {"resnet20": {"data": "cifar10", "batch": -3, "epochs": 1, "lr": 1}}
    },
    "'lr' is missing; give learning rate": {"models": {"resnet20": {"data": "cifar10", "batch": 3, "epochs": 1}}},
    "data.imagenet: empty, but resnet50 wants imagenet100": {
        "models": {"resnet50": {"data": "imagenet100", "batch": 3, "epochs": 1, "lr": 1}}
    },
    "accuracy.ratios: 0.5 has no plan": {"planner": "paper", "accuracy": {"ratios": [0.1, 0.5]}},
    "wire: smallest is for device: cpu; give indices": {"wire": "smallest", "device": "cuda"},
    "'s accuracy runs use the plans for allgather": {
        "planner": "paper",
        "topologies": ["ps-weights"],
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
    monkeypatch.setattr(plugins, "one_sum", lambda method: None if method == "lags" else "sparse")
    values = read("quick") | {"topologies": ["allgather", "ps-sparse"]}
    with pytest.raises(config.ConfigError, match="ps-sparse cannot answer lags"):
        config.load(values, "c")
    runs = config.load(values | {"methods": "all"}, "c").runs
    timed = [run for run in runs if run.startswith("timing/vgg16-lags")]
    assert timed and all("-allgather-" in run for run in timed)
    assert any(run.startswith("timing/vgg16-dlgs-0.1-ps-sparse-2workers") for run in runs)


def test_the_machine_is_checked_for_gpus_and_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))  # no nvidia-smi
    values = config.load(read("quick") | {"device": "cuda"}, "c").values
    values["models"]["resnet20"].pop("topologies")
    with pytest.raises(config.ConfigError, match="2 workers needs 2 GPUs, this machine shows 0"):
        config.check_machine(values, "c")
    values = config.load(read("quick") | {"device": "cuda"}, "c").values
    with pytest.raises(config.ConfigError, match="2 workers and a server needs 3 GPUs"):
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
            "error: config/quick.yaml and --config: device: cuda with 2 workers and a server needs 3 GPUs",
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


def test_plugins_fields_are_those_of_the_class():
    from dataclasses import fields

    for name in plugins.names("methods"):
        method = plugins.load("methods", name)
        assert set(plugins.fields(name)) == {f.name for f in fields(method) if f.init}
