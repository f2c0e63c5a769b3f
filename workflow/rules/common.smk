# Validation, discovery and targets. Nothing here imports torch.
import subprocess
import sys
from pathlib import Path

import yaml

sys.path.insert(0, workflow.basedir)

from harness import code, plugins
from harness.config import grid
from harness.config import load as configuration
from harness.data import fetch, grid, plugins, progress


def stop(error):
    """End with one line for a person, before anything runs."""
    print(f"error: {error}", file=sys.stderr)
    sys.exit(1)


def typed(value):
    """Values of --config, whose lists and mappings Snakemake leaves as text, as YAML reads them."""
    if isinstance(value, dict):
        return {key: typed(part) for key, part in value.items()}
    if isinstance(value, list):
        return [typed(part) for part in value]
    return yaml.safe_load(value) if isinstance(value, str) and value else value


def where():
    """The files that the configuration was read from, as a person would name them."""
    files = [os.path.relpath(f) for f in workflow.configfiles]
    return ", ".join(files) + (
        " and --config" if workflow.config_settings.config else ""
    )


for key in workflow.config_settings.config:
    config[key] = typed(config[key])

try:
    CONFIG = configuration.load(config, where())
except configuration.ConfigError as error:
    stop(error)

RUNS = CONFIG.runs
SPECS = {}
for study in CONFIG.studies.values():
    SPECS |= study
SPECS |= CONFIG.calibrations | RUNS  # a run that a study wants too is the paper's
GPUS = grid.gpus(CONFIG.values)
RESULTS = CONFIG.values["output"]["results"]
FIGURE_FOLDER = CONFIG.values["output"]["figures"]
REPORT = CONFIG.values["output"]["report"]
RUN_FOLDER = f"{RESULTS}/runs/{CONFIG.values['name']}"
CALIBRATION = f"{RUN_FOLDER}/calibration"
CIFAR10 = f"{CONFIG.values['data']['root']}/cifar10.npz"
CODE = Path(workflow.basedir)

# The paper's figures: number -> the model it is about.
CURVES = {
    "05": "resnet20",
    "06": "resnet20",
    "07": "vgg16",
    "08": "vgg16",
    "09": "resnet50",
    "10": "resnet50",
}
BREAKDOWNS = {"11": "resnet20", "12": "vgg16", "13": "resnet50"}
DRAWN = [
    n for n, model in (CURVES | BREAKDOWNS).items() if model in CONFIG.values["models"]
]

TABLES = expand(
    "{results}/{table}.{ext}",
    results=RESULTS,
    table=["table1", "table2", "prediction"],
    ext=["csv", "md", "tex"],
)
FIGURES = expand(
    "{folder}/figure{n}.{ext}", folder=FIGURE_FOLDER, n=DRAWN, ext=["svg", "png"]
)
# The tables of the studies: name -> what the report calls it.
STUDY_TABLES = {
    "prediction": "Predicted against measured",
    "planners": "Planners",
    "dilation": "Time dilation",
    "rates": "Link rates",
    "servers": "Parameter server",
    "selections": "Selection",
}


def runs_of(kind):
    return [Path(name).name for name, spec in RUNS.items() if spec.kind == kind]


def studied(study):
    return [Path(name).name for name in CONFIG.studies[study]]


def find(kind, run):
    return SPECS[f"{kind}/{run}"]


def timed(run):
    return find("timing", run)


def layers_of(run):
    """The calibration of the layers that a timing run trains."""
    return f"{CALIBRATION}/layers/{grid.layers_name(timed(run))}"


def exchanges_of(run):
    """The calibration of the exchanges that a timing run makes."""
    return f"{CALIBRATION}/exchanges/{grid.exchange_name(timed(run))}"


def spec_of(kind):
    return lambda wildcards: find(kind, wildcards.run).to_json()


def plan_of(kind):
    """The plan file of a run that reads one; an accuracy run reads that of the timing run over all-gather."""

    def file(wildcards):
        spec, name = find(kind, wildcards.run), wildcards.run
        if kind != "planners" and not grid.needs_plan(spec):
            return []
        if kind == "accuracy":
            alike = (spec.model, spec.method, spec.ratio, spec.topology)
            timing = map(timed, runs_of("timing"))
            name = next(
                grid.timing_name(t)
                for t in timing
                if (t.model, t.method, t.ratio, t.topology) == alike
            )
        return f"{RUN_FOLDER}/plans/{name}.json"

    return file


def code_of(kind):
    """The files of this project that a run reads: editing another file does not repeat the run."""

    def files(wildcards):
        spec = find(kind, wildcards.run)
        found = set(plugins.imports(CODE / "harness" / "run.py"))
        found |= plugins.imports(CODE / "methods" / f"{spec.method}.py")
        found |= set((CODE / "harness" / "select").glob("*.py"))  # chosen by name
        if spec.model:
            found |= plugins.imports(CODE / "models" / f"{spec.model}.py")
        found |= plugins.imports(CODE / "harness" / "comm" / f"{spec.engine}.py")
        # Uncompressed runs beside every timed method.
        if kind in ("timing", "planners"):
            found |= plugins.imports(CODE / "methods" / "none.py")
        if spec.network == "testbed":
            found |= plugins.imports(CODE / "harness" / "hosts.py")
        return sorted(os.path.relpath(f) for f in found)

    return files


def code_behind(path):
    """The files of this project that a script is made of: editing one repeats it."""
    found = plugins.imports(CODE / "workflow" / "scripts" / path)
    return sorted(os.path.relpath(f) for f in found)


def images_of(kind):
    return lambda wildcards: (
        CIFAR10 if find(kind, wildcards.run).data == "cifar10" else []
    )


def study_table_inputs(wildcards):
    """What a study's table is made from."""
    timed_runs = runs_of("timing")
    layers = sorted({f"{layers_of(run)}/layers.csv" for run in timed_runs})
    match wildcards.study:
        case "prediction":
            samples = sorted({f"{exchanges_of(run)}/samples.csv" for run in timed_runs})
            groups = expand(f"{RUN_FOLDER}/timing/{{run}}/groups.csv", run=timed_runs)
            return {"timing": groups, "layers": layers, "samples": samples}
        case "planners":
            planned = {"run": studied("planners")}
            timing = f"{RUN_FOLDER}/planners/{{run}}/iterations.csv"
            plans = f"{RUN_FOLDER}/plans/{{run}}.json"
            return {
                "timing": expand(timing, **planned),
                "plans": expand(plans, **planned),
            }
        case "dilation":
            return {"layers": layers}
        case study:
            return {"timing": f"{RESULTS}/{study}_timing.csv"}


onstart:
    try:
        if CONFIG.warning:
            print(f"warning: {CONFIG.warning}", file=sys.stderr)
        if workflow.local_exec:
            configuration.check_machine(CONFIG.values, where())
        if Path(CIFAR10).exists():
            fetch.verify_file(Path(CIFAR10))
    except (configuration.ConfigError, fetch.DataError) as error:
        stop(error)
    progress.announce(Path(RUN_FOLDER), list(RUNS))


onsuccess:
    # The report is of the default target; after a run of another target some of it may not exist yet.
    made = subprocess.run(
        [sys.executable, "-m", "snakemake", "--report", REPORT, "--nolock", "--quiet"]
        + ["--configfile", *map(str, workflow.configfiles)],
        capture_output=True,
    )
    report = f", all in {REPORT}" if made.returncode == 0 else ""
    print(f"done: tables in {RESULTS}/, figures in {FIGURE_FOLDER}/{report}")
