"""Configurations: one line for every mistake."""

import copy
import functools
import json
import math
import os
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import ROOT, clone, python_in, read

from dlgs_bench import plugins
from dlgs_bench.config import checks, files
from dlgs_bench.config import load as config
from dlgs_bench.spec import RunSpec

pytestmark = pytest.mark.unit

RECIPE = {"batch": 3, "epochs": 1, "lr": 1}

MISTAKES = {
    r"studies\.methods\.rates_mbit: \[\] is not valid; give a list of at least one link rate": {
        "studies": {"methods": {"rates_mbit": []}}
    },
    "workers: -1": {"workers": -1},
    "accuracy: 'ratios' is missing; give .*ratios": {"accuracy": {}},
    "did you mean 'dlgs'": {"methods": ["dgls"]},
    "unknown key 'metods' .did you mean 'methods'": {"metods": 1},
    r"ratios.0: 1.5 is not valid; give a ratio k/d in \(0, 1\]": {"accuracy": {"ratios": [1.5]}},
    r"ratios.1: 0 is not valid; give a ratio k/d in \(0, 1\]": {"timing": {"ratios": [0.1, 0]}},
    "studies.methods.baseline: 'csat' is not a variant or a file in methods/ .did you mean 'cast'": {
        "studies": {"methods": {"baseline": "csat"}}
    },
    "timing.ratios: .* equal to six digits; give ratios": {"timing": {"ratios": [0.1, 0.1000001]}},
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
    "variants.again.title: 'Top-K' is also the title of topk": {"variants": {"again": {"method": "topk"}}},
    "variants.dlgs-compiled: the name clashes with runs of dlgs": {
        "variants": {"dlgs-compiled": {"method": "dlgs", "title": "x"}}
    },
    "variants.topk-1: the name clashes with runs of topk": {"variants": {"topk-1": {"method": "topk", "ratio": 0.2}}},
    "methods: 'lean' is not a variant or a file in methods/": {"methods": ["none", "lean"]},
    "studies.refresh.intervals.0: 0 is not valid; give a refresh": {"studies": {"refresh": {"intervals": [0]}}},
    "collective: no file dlgs_bench/comm/collectives/rings.py .did you mean 'ring'": {"collective": "rings"},
    "collective: halving-doubling does not support 3 workers: 3 is not a power of two; give engine": {
        "collective": "halving-doubling",
        "workers": 3,
    },
    "collective: halving-doubling does not support 6 workers: 6 is not a power of two; give engine, or other studies": {
        "collective": "halving-doubling",
        "studies": {"advise": {"workers": 6}},
    },
    "collective: ring cannot be combined with topology ps-weights; give engine": {"collective": "ring"},
    "collective: omnireduce is for device: cpu, not cuda; give engine": {
        "collective": "omnireduce",
        "device": "cuda",
    },
    "streams.block: 0 is not valid; give entries of a block, an integer of at least 1": {"streams": {"block": 0}},
    "streams.aggregators: 3 aggregators but only 2 workers; give at most 2": {"streams": {"aggregators": 3}},
    "streams.aggregators: 3 aggregators but only 2 workers in models.vgg16.more_workers; give at most 2": {
        "workers": 4,
        "streams": {"aggregators": 3},
        "models": {"vgg16": RECIPE | {"more_workers": [2, 8]}},
    },
    "models.vgg16.more_workers: 2 is below workers, 4; give larger numbers": {
        "workers": 4,
        "models": {"vgg16": RECIPE | {"more_workers": [2, 8]}},
    },
    "hang_timeout_s: 0 is not valid; give seconds": {"hang_timeout_s": 0},
    "no file models/resnet21.py .did you mean 'resnet20'": {"models": {"resnet21": RECIPE}},
    "models.resnet20.batch: -3 is not valid": {"models": {"resnet20": RECIPE | {"batch": -3}}},
    "'lr' is missing; give learning rate": {"models": {"resnet20": {"batch": 3, "epochs": 1}}},
    "models.resnet20.data: 'mnist' is not valid; give one of: cifar10": {
        "models": {"resnet20": RECIPE | {"data": "mnist"}}
    },
    "data.imagenet: empty, but resnet50 needs imagenet100": {"models": {"resnet50": RECIPE}},
    "accuracy.ratios: lags_adaptive has no plan for 0.5; give only ratios of timing.ratios": {
        "methods": ["lags_adaptive"],
        "accuracy": {"ratios": [0.1, 0.5]},
    },
    "wire: smallest is for device: cpu; give indices": {"wire": "smallest", "device": "cuda"},
    "wire: run-length is for device: cpu; give indices": {"wire": "run-length", "device": "cuda"},
    "with its plan for allgather; add it, or leave lags_adaptive out": {
        "methods": ["lags_adaptive"],
        "topologies": ["ps-weights"],
        "models": {"vgg16": RECIPE},
    },
    "testbed.host_rates_mbit: needs a fixed rate; give testbed.rate_mbit in Mb/s": {
        "network": "testbed",
        "device": "cpu",
        "testbed": {"host_rates_mbit": {0: 100}},
    },
    "topologies.0: 'ps' is not valid; give one of: allgather, ps-weights, ps-sparse": {"topologies": ["ps"]},
    "engine: 'mpi' is not valid; give one of: horovod, torch_dist": {"engine": "mpi"},
    "accuracy.ratios.0: nan is not valid; give a finite number": {"accuracy": {"ratios": [math.nan]}},
    "models.resnet20.lr: inf is not valid; give a finite number": {"models": {"resnet20": RECIPE | {"lr": math.inf}}},
    r"lr: '1e-1' is not valid; give .*, a number above 0 .YAML reads 1e-1 as text; write 0.1.": {
        "models": {"resnet20": RECIPE | {"lr": "1e-1"}}
    },
    r"lr_steps: \[3, 2\] is not valid; give epochs that rise up to 4": {
        "models": {"resnet20": RECIPE | {"epochs": 4, "lr_steps": [3, 2]}}
    },
    r"lr_steps: \[3, 5\] is not valid; give epochs that rise up to 4": {
        "models": {"resnet20": RECIPE | {"epochs": 4, "lr_steps": [3, 5]}}
    },
    "warmup_epochs: 1000 is not valid; give at most 4": {
        "models": {"resnet20": RECIPE | {"epochs": 4, "warmup_epochs": 1000}}
    },
    "models.resnet20.batch: 1000000000 is not valid; give .* from 2 to 65536": {
        "models": {"resnet20": RECIPE | {"batch": 10**9}}
    },
    "test_samples: 20000 is not valid; give .* from 1 to 10000": {"accuracy": {"ratios": [0.1], "test_samples": 20000}},
    "output.report: a/ is also the folder of results; give a file": {
        "output": {"results": "a", "figures": "b", "report": "a/"}
    },
    "the configuration: the key True is not text; put it in quotes": {True: 1},
    "workers: 2.0 is not valid; give a number of .*, an integer": {"workers": 2.0},
    "workers: '1e1' is not valid; .*YAML reads 1e1 as text; write 10": {"workers": "1e1"},
    "studies.hybrid.workers.0: 2.0 is not valid": {"studies": {"hybrid": {"workers": [2.0]}}},
    "bits: 4.0 is not valid; give one of: 2, 4, 8": {"variants": {"qsgd": {"bits": 4.0}}},
    r"density_cap: '1e-7' is not valid; give .*float .YAML reads 1e-7 as text; write 1.0e-07.": {
        "variants": {"dlgs": {"density_cap": "1e-7"}}
    },
    r"lr: '0.5' is not valid; .*YAML reads 0.5 as text; write 0.5, without quotes": {
        "models": {"resnet20": RECIPE | {"lr": "0.5"}}
    },
    "models.resnet20.lr: a number with more than 308 digits is not valid; give a finite number": {
        "models": {"resnet20": RECIPE | {"lr": 10**5000}}
    },
    "models.resnet20.epochs: 1000000000.0 is not valid; .* at most 10000": {
        "models": {"resnet20": RECIPE | {"epochs": 1e9}}
    },
    "models.resnet20.data: the model does not accept text; give one of: cifar10": {
        "models": {"resnet20": RECIPE | {"data": "text"}}
    },
    r"seeds: \[\] is not valid; give a list of different integers": {"seeds": []},
    r"seeds: \[0, 0\] is not valid; give a list of different integers": {"seeds": [0, 0]},
    "seeds.0: 18446744073709551616 is not valid; give an integer from 0 to": {"seeds": [2**64]},
    "name: 'quick.n' is not valid": {"name": "quick\n"},
    "variants: 'x+[.]{3} is not valid; give a name": {"variants": {"x" * 300: {"method": "topk"}}},
    "variants.x.title: 'a.nb' is not valid; give a line of text": {
        "variants": {"x": {"method": "topk", "title": "a\nb"}}
    },
    "variants.x.title: ' ' is not valid; give a line of text": {"variants": {"x": {"method": "topk", "title": " "}}},
    "output.results: 'my results' is not valid; give a path of letters": {
        "output": {"results": "my results", "figures": "b", "report": "c"}
    },
    "output.figures: '-f' is not valid; give a path of letters": {
        "output": {"results": "a", "figures": "-f", "report": "c"}
    },
    "evaluations: 1000000 is not valid; give points of": {"accuracy": {"ratios": [0.1], "evaluations": 10**6}},
    "models: no file models/a b.py": {"models": {"a\nb": RECIPE}},
    "studies.rates.models: no file models/resnet21.py .did you mean 'resnet20'": {
        "studies": {"rates": {"models": ["resnet21"]}}
    },
    "studies.methods.lr: 'dgls' is not a variant .did you mean 'dlgs'": {"studies": {"methods": {"lr": {"dgls": 0.1}}}},
    "timing.launches: 1000000000 is not valid; give a number of launches": {
        "timing": {"ratios": [0.1], "launches": 10**9}
    },
    "models: the key 18 is not text; put it in quotes": {"models": {18: RECIPE}},
    "models.resnet20.optimizer: 'adam' is not valid; give one of: sgd, adamw, muon": {
        "models": {"resnet20": RECIPE | {"optimizer": "adam"}}
    },
    r"models.resnet20.betas: \[0.9\] is not valid; give of adamw and muon, a list of two numbers": {
        "models": {"resnet20": RECIPE | {"betas": [0.9]}}
    },
    "models.resnet20.momentum: not a key of adamw; leave it out, or give optimizer: sgd or muon": {
        "models": {"resnet20": RECIPE | {"optimizer": "adamw", "momentum": 0.9}}
    },
    "models.resnet20.betas: not a key of sgd; leave it out, or give optimizer: adamw or muon": {
        "models": {"resnet20": RECIPE | {"betas": [0.9, 0.99]}}
    },
    "models.resnet20.optimizer: muon updates matrices of hidden layers, and resnet20 has none; give adamw": {
        "models": {"resnet20": RECIPE | {"optimizer": "muon"}}
    },
    "models.resnet20.optimizer: adamw has momentum, and dgc applies its own; leave dgc out, or give sgd": {
        "models": {"resnet20": RECIPE | {"optimizer": "adamw"}},
        "methods": ["none", "dgc"],
        "topologies": ["allgather"],
    },
    "models.resnet20.optimizer: adamw does not run on a server; leave topology ps-weights out, or give sgd": {
        "models": {"resnet20": RECIPE | {"optimizer": "adamw"}},
        "topologies": ["ps-weights"],
    },
    "studies.servers: models.resnet20.optimizer: adamw does not run on a server": {
        "models": {"resnet20": RECIPE | {"optimizer": "adamw"}},
        "topologies": ["allgather"],
        "network": "testbed",
    },
}


@pytest.mark.parametrize("expected", MISTAKES)
def test_a_mistake_is_one_line_that_says_where_what_and_what_would_be_right(expected):
    with pytest.raises(config.ConfigError, match=expected) as error:
        config.load(read("quick") | MISTAKES[expected], "config/mine.yaml")
    assert str(error.value).startswith("config/mine.yaml: ") and "\n" not in str(error.value)


def places(values, path: tuple = ()) -> list[tuple]:
    """The path of every value in a configuration."""
    inside = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    return [path] * bool(path) + [place for key, value in inside for place in places(value, (*path, key))]


def changed(values: dict, place: tuple, value) -> dict:
    """A copy with another value at one path."""
    values = copy.deepcopy(values)
    *above, last = place
    functools.reduce(lambda part, key: part[key], above, values)[last] = value
    return values


def taken(values: dict) -> bool:
    """Whether a configuration is taken, and then all of its runs have folders and specs of their own; a refusal is one
    line."""
    try:
        found = config.load(values, "c")
    except config.ConfigError as error:
        assert str(error).startswith("c: ") and len(str(error).splitlines()) == 1
        return False
    for name, spec in found.every.items():
        assert re.fullmatch("[a-z]+/[a-z0-9._-]+", name) and len(name) < 250
        assert RunSpec.from_json(spec.to_json()) == spec
    return True


SMALL = read("smoke") | {"methods": ["none", "dlgs"]}
ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.lists(st.integers(), max_size=2),
    st.dictionaries(st.one_of(st.text(max_size=8), st.integers(), st.booleans()), st.integers(), max_size=2),
    st.sampled_from(["1e-1", "all", "auto", "..", "a b", "results", -1, 0, 1e300, 10**12]),
)  # fmt: skip


@settings(max_examples=40)
@given(st.sampled_from(places(SMALL)), ANYTHING)
def test_whatever_stands_in_a_configuration_it_is_taken_or_refused_in_one_line(place, value):
    taken(changed(SMALL, place, value))


SCHEMA = config.full_schema()
NAMES = {kind: plugins.names(kind) for kind in ("methods", "models")}
SOME_METHODS = st.lists(st.sampled_from(NAMES["methods"]), min_size=1, max_size=4, unique=True)
SETTINGS = {
    "title": st.sampled_from(["Mine", "Yours | 2", "\u2028"]), "ratio": st.floats(0.01, 1),
    "refresh_every": st.integers(0, 9), "error_feedback": st.booleans(), "selection": st.just("compiled"),
}  # fmt: skip
SOME_VARIANTS = st.one_of(
    st.just({}),
    st.dictionaries(
        st.sampled_from(["a", "b"]),
        st.fixed_dictionaries({"method": st.sampled_from(["dlgs", "topk", "lags", "none"])}, optional=SETTINGS),
        max_size=2,
    ),
)
# What the schema cannot say of a value, by where it stands.
KNOWN = {
    "name": st.sampled_from(["drawn", "-", "0"]),
    "methods": st.one_of(st.just("all"), SOME_METHODS, SOME_METHODS),
    "studies.methods.methods": SOME_METHODS,
    "studies.methods.baseline": st.sampled_from(NAMES["methods"]),
    "variants": SOME_VARIANTS,
    "studies.methods.variants": SOME_VARIANTS,
    "collective": st.sampled_from(["engine", "engine", "engine", "ring", "halving-doubling", "omnireduce"]),
    "output.results": st.sampled_from(["a", "a", "a/b/"]),
    "output.figures": st.sampled_from(["a", "c", "/c"]),
    "output.report": st.sampled_from(["a.html", "a/b.html", "c.html"]),
    "accuracy.ratios": st.sampled_from([[0.1], [0.01, 0.1], [1]]),
    "timing.ratios": st.sampled_from([[0.1, 0.01], [0.1, 0.01], [1, 0.1]]),
    "models.*.data": st.just("cifar10"),
    "models.*.stand_in": st.just("cifar10"),
    "models.*.lr_steps": st.sampled_from([[], [], [1e-9, 0.5], [2, 1]]),
    "models.*.warmup_epochs": st.sampled_from([0, 0, 0.5]),
    "data.imagenet": st.sampled_from(["nowhere", "nowhere", ""]),
}
KEYS = {"models": NAMES["models"], "studies.hybrid.models": NAMES["models"], "testbed.host_rates_mbit": [0, 1, "1", 7]}


def allowed(part: dict, place: str = "") -> st.SearchStrategy:
    """Values that a part of the schema allows."""
    while "$ref" in part:
        part = functools.reduce(lambda one, name: one[name], part["$ref"].split("/")[1:], SCHEMA)
    if place in KNOWN:
        return KNOWN[place]
    if "enum" in part or "const" in part:
        return st.sampled_from(part.get("enum") or [part["const"]])
    if "oneOf" in part:
        return st.one_of([allowed(one, place) for one in part["oneOf"]])
    least = part.get("minimum", part.get("exclusiveMinimum", 0))
    most = part.get("maximum", part.get("exclusiveMaximum", least + 1000))
    match part["type"]:
        case "integer":
            return st.integers(least, most)
        case "number":
            ends = {"exclude_min": "exclusiveMinimum" in part, "exclude_max": "exclusiveMaximum" in part}
            return st.floats(least, most, **ends)
        case "boolean":
            return st.booleans()
        case "string":
            return st.from_regex(part["pattern"]) if "pattern" in part else st.sampled_from(NAMES["models"])
        case "array":
            return st.lists(allowed(part["items"]), min_size=part.get("minItems", 0), max_size=3, unique_by=repr)
    if isinstance(part["additionalProperties"], dict):
        keys = st.sampled_from(KEYS.get(place, NAMES["methods"]))
        each = allowed(part["additionalProperties"], f"{place}.*")
        return st.dictionaries(keys, each, min_size=part.get("minProperties", 0), max_size=2)
    parts = {name: allowed(one, f"{place}.{name}".strip(".")) for name, one in part.get("properties", {}).items()}
    needed = {name: parts.pop(name) for name in part.get("required", ())}
    return st.fixed_dictionaries(needed, optional=parts)


@st.composite
def whole(draw) -> dict:
    """A configuration that the schema allows, or one with up to two arbitrary values."""
    values = draw(allowed(SCHEMA))
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        values = changed(values, draw(st.sampled_from(places(values))), draw(ANYTHING))
    return values


@pytest.mark.slow
def test_whole_configurations_are_taken_or_refused_in_one_line():
    outcomes = set()

    @settings(max_examples=150)
    @given(whole())
    def hold(values):
        outcomes.add(taken(values))

    hold()
    assert outcomes == {True, False}


@pytest.mark.parametrize(
    "recipe, expected",
    [
        ({}, ("sgd", 0.9, (0.9, 0.999))),
        ({"optimizer": "adamw", "betas": [0.9, 0.95]}, ("adamw", 0.9, (0.9, 0.95))),
        ({"optimizer": "muon"}, ("muon", 0.95, (0.9, 0.999))),
    ],
)
def test_the_runs_of_a_model_have_the_optimizer_of_its_recipe(recipe, expected):
    values = read("transformer")
    values["models"]["transformer"] |= recipe
    loaded = config.load(values, "c")
    specs = [*loaded.runs.values(), *(spec for spec in loaded.calibrations.values() if spec.kind == "layers")]
    assert {(one.training.optimizer, one.training.momentum, one.training.betas) for one in specs} == {expected}
    methods = {one.scheme.method for one in loaded.studies["methods"].values()}
    assert ("dgc" in methods) == (not recipe)  # the study trains and times all methods that it can


def test_variants_that_are_not_run_are_named():
    values = read("quick") | {"variants": {"dgc": {"title": "x"}, "dlgs": {"refresh_every": 8}}}
    warnings = config.load(values, "c").warning.split("; ")
    assert warnings[0] == "c: variants: dgc not among methods, so not run"


PROCESSORS = {  # words of /proc/cpuinfo: whether bfloat16 can be asked for, and what auto is
    "AuthenticAMD avx512f": (False, "float32"),
    "AuthenticAMD avx512f avx512_bf16": (True, "bfloat16"),
    "GenuineIntel avx512f avx512_bf16": (True, "float32"),
    "GenuineIntel avx512f avx512_bf16 amx_bf16": (True, "bfloat16"),
    "asimd bf16": (True, "bfloat16"),
}


@pytest.mark.parametrize("processor", PROCESSORS)
def test_precision_is_what_the_processor_is_fastest_in(processor, monkeypatch):
    monkeypatch.setattr(checks, "_processor", lambda: set(processor.split()))
    has, decided = PROCESSORS[processor]
    loaded = config.load(read("long_training"), "config/long_training.yaml")
    assert {spec.training.precision for spec in loaded.runs.values()} == {decided}
    forced = read("long_training") | {"models": {"resnet20": RECIPE | {"precision": "bfloat16"}}}
    wrong = checks.check_precisions(config.load(forced, "mine").values)
    expected = "models.resnet20.precision: this processor does not support bfloat16; give float32, or auto"
    assert wrong == (None if has else expected)


FILES = {
    "a: 1\nb: {c: 1, c: 2}\n": "line 2: duplicate key c",
    "__use_yte__: true\n__definitions__: [import os]\n": "__use_yte__ runs code in a file",
    "a: [1\nb: 2": "line 2: expected ',' or ']'",
    "a: &x [1, *x]\n": ": Circular reference detected",
    "a: 2020-02-30\n": ": day is out of range",
    "a: 1\n\tb: 2\n": "line 2: found character",
    "": ": not a mapping of keys to values; write keys as in config/quick.yaml",
    "- 1\n": ": not a mapping of keys to values; write keys as in config/quick.yaml",
    "a: \x07": ": invalid YAML",
}


@pytest.mark.parametrize("text", FILES)
def test_a_file_that_yaml_would_read_as_something_else_is_refused(text, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    found = files.problem(path)
    assert found.startswith(str(path)) and FILES[text] in found and "\n" not in found


def test_the_projects_files_are_sound_and_a_missing_one_is_named(tmp_path):
    every = sorted((ROOT / "config").glob("*.yaml"))
    assert len(every) >= 4 and not any(map(files.problem, every))
    assert files.problem(tmp_path / "none.yaml").endswith("none.yaml: the file does not exist")


def test_a_merged_mapping_may_have_a_key_again(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("x: {y: {z: &b {<<: &p {a: 1}, a: 2}}}\nw: {<<: *b, a: 3}\n")
    assert files.problem(path) is None


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    assert files.problem(tmp_path).endswith(": cannot be read: Is a directory")
    (tmp_path / "mine.yaml").write_bytes(b"a: \xff")
    assert files.problem(tmp_path / "mine.yaml").endswith(": cannot be read: it is not a text file")


def test_a_pipe_is_refused_since_snakemake_reads_a_file_again(tmp_path):
    os.mkfifo(tmp_path / "mine.yaml")
    assert files.problem(tmp_path / "mine.yaml").endswith(
        "mine.yaml: a pipe or a device cannot be read twice; write the configuration to a file"
    )


def test_two_models_of_one_title_are_refused(monkeypatch):
    monkeypatch.setattr(plugins, "describe", lambda kind, name: {"title": "Net"})
    wrong = checks.check_models({"models": {"resnet20": RECIPE, "vgg16": RECIPE}})
    assert wrong == "models.vgg16: its TITLE 'Net' is also the title of resnet20; give each its own"


def test_a_file_whose_name_python_cannot_import_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(plugins.FOLDERS, "models", tmp_path)
    for name in ("my-net", "net.v2", "my net"):
        (tmp_path / f"{name}.py").touch()
        with pytest.raises(ValueError, match=f"^{name}.py is not a name of letters, digits and _; rename the file$"):
            plugins.load("models", name)
        monkeypatch.setitem(plugins._descriptions, ("models", name), {"error": ""})
        plugins._write("models", name)  # does nothing
    (tmp_path / "Mine.py").touch()
    assert plugins.names.__wrapped__("models") == ["Mine", "my net", "my-net", "net.v2"]


def test_a_method_file_that_a_configuration_does_not_name_does_not_stop_it(monkeypatch):
    """A copy of a file has its title; another file has a parameter without a default."""
    topk, names = plugins.describe("methods", "topk"), plugins.names("methods")
    describe, known = plugins.describe, plugins.names
    own = {"copied": topk, "needy": topk | {"title": "Needy", "fields": {"k": {"type": "int"}}}}
    monkeypatch.setattr(plugins, "describe", lambda kind, name: own.get(name) or describe(kind, name))
    monkeypatch.setattr(plugins, "usable", lambda kind: [*own, *names])
    monkeypatch.setattr(plugins, "names", lambda kind: [*names, *own] if kind == "methods" else known(kind))
    loaded = config.load(read("smoke") | {"methods": ["none", "topk"]}, "c")
    run = {spec.scheme.method for spec in loaded.studies["methods"].values()}
    assert "topk" in run and not run & own.keys()


def test_the_machine_is_checked_for_cores():
    values = config.load(read("quick") | {"workers": 1000}, "c").values
    with pytest.raises(config.ConfigError, match=r"workers: 1000 processes on \d+ cores; give at most \d+"):
        config.check_machine(values, "c")
    values = config.load(read("quick") | {"threads": 10**6}, "c").values
    with pytest.raises(
        config.ConfigError, match=r"threads: 1000000 for each of 4 processes on \d+ cores; give at most"
    ):
        config.check_machine(values, "c")


@pytest.mark.parametrize("latency_ms, most", [(0, 126), (5, 83)])
def test_a_testbed_of_too_many_hosts_is_one_line_before_anything_runs(latency_ms, most):
    testbed = {"rate_mbit": 100, "host_rates_mbit": {}, "latency_ms": latency_ms}
    values = read("quick") | {"network": "testbed", "testbed": testbed, "workers": 200}
    why = checks.check_shaped(config.load(values, "c").values)
    assert re.fullmatch(rf"workers: 20\d processes, but a testbed has at most {most} hosts; give fewer, or .*", why)


def test_places_that_cannot_hold_what_is_put_there_are_named(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "file.html").write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    for key, place, said in [
        ("output.results", "file", "is a file; give a folder"),
        ("output.results", "link/below", "is a broken symbolic link; give a folder"),
        ("output.figures", "file/below", "is a file; give a folder"),
        ("output.report", "folder", "is a folder; give a file"),
        ("output.report", "file.html", "exists and is not a report; give another file"),
        ("output.report", "table1.csv", "does not end in .html; give a file that does"),
        ("data.root", "file", "is a file; give a folder"),
    ]:
        part, _, name = key.partition(".")
        own = read("quick")[part] | {name: str(tmp_path / place)}
        with pytest.raises(config.ConfigError, match=f"{key}: .*{said}"):
            config.check_outputs_writable(config.load(read("quick") | {part: own}, "c").values, "c")


def test_a_place_that_no_disk_could_have_is_refused():
    data = {"root": "d" * 300}
    with pytest.raises(config.ConfigError, match=r"c: d{300}/cifar10\.npz: File name too long; give another path"):
        config.check_outputs_writable(config.load(read("quick") | {"data": data}, "c").values, "c")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_nobody_may_write_into_is_named(tmp_path):
    (tmp_path / "closed").mkdir(mode=0o500)
    own = read("quick")["output"] | {"results": str(tmp_path / "closed" / "results")}
    with pytest.raises(config.ConfigError, match=r"output\.results: .* is not writable"):
        config.check_outputs_writable(config.load(read("quick") | {"output": own}, "c").values, "c")


def test_a_server_leaves_out_what_it_cannot_answer_and_is_refused_if_that_is_everything(monkeypatch):
    described = plugins.describe

    def without_one_sum(kind, name):
        return described(kind, name) | ({"sum_kind": None} if name == "lags" else {})

    monkeypatch.setattr(plugins, "describe", without_one_sum)
    values = read("quick") | {"topologies": ["allgather", "ps-sparse"]}
    with pytest.raises(config.ConfigError, match="ps-sparse does not support lags, which need more than one sum"):
        config.load(values | {"methods": ["none", "lags"]}, "c")
    loaded = config.load(values | {"methods": ["none", "lags", "dlgs"]}, "c")
    assert "ps-sparse does not support lags, so not timed there" in loaded.warning
    runs = config.load(values | {"methods": "all"}, "c").runs
    timed = [member for spec in runs.values() if spec.kind == "timing" for member in spec.members.values()]
    topologies = {name: {one.topology.name for one in timed if one.variant == name} for name in ("lags", "dlgs")}
    assert topologies == {"lags": {"allgather"}, "dlgs": {"allgather", "ps-weights", "ps-sparse"}}
    assert {one.cluster.workers for one in timed if one.topology.name == "ps-sparse"} == {values["server_workers"]}


def test_the_machine_is_checked_for_gpus_and_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))  # no nvidia-smi
    values = config.load(read("quick") | {"device": "cuda"}, "c").values
    values["models"]["resnet20"].pop("topologies")
    with pytest.raises(config.ConfigError, match="the largest run needs 2 GPUs, this machine shows 0"):
        config.check_machine(values, "c")
    values = config.load(read("quick") | {"device": "cuda"}, "c").values
    with pytest.raises(config.ConfigError, match="the largest run needs 4 GPUs"):
        config.check_machine(values, "c")
    values = config.load(read("quick") | {"data": {"root": "data", "imagenet": "no/such"}}, "c").values
    with pytest.raises(config.ConfigError, match="no folder no/such/train/n0"):
        config.check_machine(values, "c")


@pytest.mark.parametrize("kind, name", [("methods", "topk"), ("models", "resnet20")])
def test_a_plug_in_that_cannot_be_described_is_one_line(kind, name, monkeypatch):
    monkeypatch.setitem(plugins._descriptions, (kind, name), {"error": "no weights"})
    with pytest.raises(config.ConfigError) as refused:
        config.load(read("quick"), "c")
    assert str(refused.value).startswith(f"c: {kind}: {kind}/{name}.py cannot be used: no weights")


# file -> its source, what a configuration changes that names it, and what is said. The case of models/broken.py names
# models/ends.py too, so that one process describes both.
UNUSABLE = {
    "methods/broken.py": ("import no_such_library", {"methods": ["none", "broken"]}, "no_such_library"),
    "methods/empty.py": ("x = 1", {"methods": ["none", "empty"]}, "0 subclasses of Method are not exactly one"),
    "methods/my-method.py": ("", {"methods": ["none", "my-method"]}, "my-method.py is not a name of letters"),
    "methods/ends.py": ("raise SystemExit", {"methods": ["none", "ends"]}, "it ends Python (SystemExit"),
    "models/broken.py": ("TITLE = 'B'", {"models": {"broken": RECIPE, "ends": RECIPE}}, "DATA is missing"),
    "models/ends.py": (
        "import os\nopen('ran', 'w').close()\nos._exit(1)", {"models": {"ends": RECIPE}}, "it ends Python (status 1)",
    ),
}  # fmt: skip
CONFIGURED = """
import json, os, sys, yaml
from dlgs_bench.config import load
values = yaml.safe_load(open("config/tiny.yaml", encoding="utf-8"))
for changes in json.loads(sys.argv[1]):
    try:
        print(len(load.load(values | changes, "mine.yaml").runs))
    except load.ConfigError as error:
        print(error)
    print(os.path.exists("ran"))
"""


@pytest.mark.slow
def test_a_plug_in_that_cannot_be_used_is_one_line_and_a_model_is_run_only_if_it_is_named(tiny_source, tmp_path):
    project = clone(tiny_source, tmp_path / "project")
    for file, (source, _, _) in UNUSABLE.items():
        (project / file).write_text(source)
    changes = [{}, {"methods": "all"}, *(changes for _, changes, _ in UNUSABLE.values())]
    printed = python_in(project, "-c", CONFIGURED, json.dumps(changes)).splitlines()
    sound, of_all, *lines = printed[::2]
    assert int(sound) > 0 and "methods/broken.py cannot be used" in of_all
    for line, (file, (_, _, expected)) in zip(lines, UNUSABLE.items(), strict=True):
        assert line.startswith(f"mine.yaml: {file.split('/')[0]}: {file} cannot be used: ") and expected in line
    assert printed[1::2] == [f"{'models' in changed}" for changed in changes]
