"""Configurations: one line for every mistake."""

import json
import subprocess
import sys

import pytest
import yaml
from conftest import ROOT, copy_project, read, snakemake

from harness import plugins
from harness.config import load as config

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
    "variants.block_topk.block: 0 is not valid; give a value >= 1": {"variants": {"block_topk": {"block": 0}}},
    "sparse_steps: -1 is not valid; give a value >= 0": {"variants": {"sparse_dense": {"sparse_steps": -1}}},
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
    "collective: halving-doubling refuses 3 workers: 3 is no power of two; give engine": {
        "collective": "halving-doubling",
        "workers": 3,
    },
    "collective: ring adds up among equals, ps-weights on a server": {"collective": "ring"},
    "collective: omnireduce finds blocks of zeros on device: cpu; give engine": {
        "collective": "omnireduce",
        "device": "cuda",
    },
    "streams.block: 0 is not valid; give entries of a block, an integer of at least 1": {"streams": {"block": 0}},
    "streams.aggregators: 3 among 2 workers; give fewer": {"streams": {"aggregators": 3}},
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
    "wire: run-length is for device: cpu; give indices": {"wire": "run-length", "device": "cuda"},
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
