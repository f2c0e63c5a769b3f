# Validation, discovery and targets. Nothing here imports torch.
import json
import shlex
import subprocess
import sys
from pathlib import Path

import yaml

sys.path.insert(0, workflow.basedir)

from harness import code, data, plugins
from harness.config import figures, grid, studies, variants
from harness.config import load as configuration
from harness.data.fetch import cifar10 as fetch
from harness.launch import progress
from harness.spec import Place


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

VALUES = CONFIG.values
SPECS = CONFIG.every
ENVIRONMENT = f"{workflow.basedir}/environment.yml"
RESULTS = VALUES["output"]["results"]
FIGURE_FOLDER = VALUES["output"]["figures"]
RUN_FOLDER = f"{RESULTS}/runs/{VALUES['name']}"
CALIBRATION = f"{RUN_FOLDER}/calibration"
FOLDERS = {kind: RUN_FOLDER for kind in ("accuracy", "timing", "planners")}
FOLDERS |= {kind: CALIBRATION for kind in ("layers", "exchanges")}
CIFAR10 = f"{VALUES['data']['root']}/cifar10.npz"
# Where runs happen: part of the command, and no parameter of a rule, since it repeats no run.
PLACE = Place(
    data={name: VALUES["data"]["root"] for name in data.names()}
    | {"imagenet100": VALUES["data"]["imagenet"]},
    hung_after_s=VALUES["hung_after_s"],
    workflow=os.getpid(),
)
LAUNCH_PLACE = shlex.quote(PLACE.to_json()).replace("{", "{{").replace("}", "}}")
ALL_CORES = workflow.cores or 1  # a timed run has the machine to itself
VARIANTS = {name: one.title for name, one in variants.chosen(VALUES).items()}
MODELS = {name: plugins.describe("models", name)["title"] for name in VALUES["models"]}
DRAWN = figures.of_models(VALUES["models"])
# What the rules "all" and "studies" ask for; studies add their own.
TARGETS, STUDY_TARGETS = [], []


def named(kind):
    """The names of the runs of a kind in the paper's tables, without the kind."""
    return [Path(name).name for name, spec in CONFIG.runs.items() if spec.kind == kind]


def studied(study):
    """The names of the runs of a study, without their kind."""
    return [Path(name).name for name in CONFIG.studies[study]]


def timed(run):
    """The spec of a timing run."""
    return SPECS[f"timing/{run}"]


def tables(kind, table, runs):
    """One table of each of these runs."""
    return [f"{FOLDERS[kind]}/{kind}/{run}/{table}" for run in runs]


def layers_of(run):
    """The calibration of the layers that a timing run trains."""
    return f"{CALIBRATION}/layers/{grid.layers_name(timed(run))}"


def exchanges_of(run):
    """The calibration of the exchanges that a timing run makes."""
    return f"{CALIBRATION}/exchanges/{grid.exchange_name(timed(run))}"


def calibrated(table, folders=(layers_of,)):
    """One table of each calibration that belongs to the timing runs of the paper's tables."""
    found = {f"{folder(run)}/{table}" for run in named("timing") for folder in folders}
    return sorted(found)


def run_params(kind):
    """What the command of a run of this kind says, and the statements that decide its numbers."""

    def spec(wildcards):
        return SPECS[f"{kind}/{wildcards.run}"]

    return {
        "spec": lambda wildcards: spec(wildcards).to_json(),
        "folder": f"{FOLDERS[kind]}/{kind}/{{run}}",
        "code": lambda wildcards: code.fingerprints(code.behind_run(spec(wildcards))),
    }


def run_files(kind, *tables):
    """What a run of this kind leaves behind."""
    return [f"{FOLDERS[kind]}/{kind}/{{run}}/{file}" for file in ("run.json", *tables)]


def data_of(kind):
    """Waits for the file that a run of this kind reads. Its path is no input: the same data elsewhere are the same."""

    def file(wildcards):
        if SPECS[f"{kind}/{wildcards.run}"].training.data == "cifar10":
            checkpoints.cifar10.get()
        return []

    return file


def plan_of(kind):
    """The plan that a run of this kind reads, if any; what the plan says decides whether the run is repeated."""

    def file(wildcards):
        name = grid.plan_name(SPECS[f"{kind}/{wildcards.run}"], CONFIG.runs)
        return checkpoints.plan.get(run=name).output[0] if name else []

    return file


def gpus_of(kind):
    """How many GPUs a run of this kind takes: one per process."""

    def count(wildcards):
        spec = SPECS[f"{kind}/{wildcards.run}"]
        return spec.processes if spec.cluster.device == "cuda" else 0

    return count


def script_params(path, caption=None):
    """The parameters of a script that makes a table or a figure; ``path`` from the project's root."""
    return {
        "caption": caption or (lambda wildcards: code.docstring(path)),
        "variants": VARIANTS,
        "models": MODELS,
        "code": code.fingerprints(code.behind_script(path)),
    }


def figure_params(path):
    """The parameters of a script that draws the figures of models; wildcard: ``figure``."""

    def caption(wildcards):
        return f"{DRAWN[wildcards.figure].about} {code.docstring(path)}"

    model = lambda wildcards: DRAWN[wildcards.figure].model
    value = lambda wildcards: DRAWN[wildcards.figure].value
    return script_params(path, caption) | {"model": model, "value": value}


def figure_label(wildcards):
    return {"artefact": DRAWN[wildcards.figure].label}


def table_files(name, label, category="Studies"):
    """The files of a table, which the report shows as ``label``."""
    files = {kind: f"{RESULTS}/{name}.{kind}" for kind in ("csv", "md", "tex")}
    return files | {"html": shown(f"{RESULTS}/{name}.html", label, category)}


def figure_files(name, label, category="Studies"):
    """The files of a figure, which the report shows as ``label``."""
    svg, png = (f"{FIGURE_FOLDER}/{name}.{kind}" for kind in ("svg", "png"))
    return {"svg": shown(svg, label, category), "png": png}


def shown(file, label, category):
    return report(
        file,
        caption=f"{workflow.basedir}/workflow/report/artefact.rst",
        category=category,
        labels={"artefact": label} if isinstance(label, str) else label,
    )


def make_report():
    """The report of the default target; after a run of another target some of it may not exist yet."""
    seen = Path(RESULTS) / "logs" / "config.json"
    seen.write_text(json.dumps(config))  # with what --config says
    command = ["--report", VALUES["output"]["report"], "--configfile", str(seen)]
    made = subprocess.run(
        [sys.executable, "-m", "snakemake", "--nolock", "--quiet", *command],
        capture_output=True,
    )
    return f", all in {VALUES['output']['report']}" if made.returncode == 0 else ""


onstart:
    try:
        if CONFIG.warning:
            print(f"warning: {CONFIG.warning}", file=sys.stderr)
        if workflow.local_exec:
            configuration.check_machine(VALUES, where())
        if Path(CIFAR10).exists():
            fetch.verify_file(Path(CIFAR10))
    except (configuration.ConfigError, fetch.DataError) as error:
        stop(error)
    progress.announce(Path(RUN_FOLDER), list(CONFIG.runs))


onsuccess:
    print(f"done: tables in {RESULTS}/, figures in {FIGURE_FOLDER}/{make_report()}")
