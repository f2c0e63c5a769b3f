# Validation, discovery and targets. Nothing here imports torch.
import json
import os
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import yaml

sys.path.insert(0, workflow.basedir)

from dlgs_bench import fingerprint, plugins
from dlgs_bench.config import (
    figures,
    files,
    grid,
    launching,
    remaining,
    studies,
    variants,
)
from dlgs_bench.config import load as configuration
from dlgs_bench.data.fetch import DataError, cifar10, imagenet100
from dlgs_bench.launch import lock, progress
from dlgs_bench.buckets import FIXED


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


for folder in (workflow.basedir, os.getcwd()):
    if "{" in folder or "}" in folder:  # Snakemake would read them as wildcards
        stop(f"{folder}: a path with braces; move the project to a folder without")

if workflow.is_main_process:
    lock.free()  # before Snakemake checks the lock
    plugins.forget_errors()

CONDA = [m for m in workflow.deployment_settings.deployment_method if m.name == "CONDA"]
if CONDA and not shutil.which("conda"):
    workflow.deployment_settings.deployment_method -= {*CONDA}
    if workflow.is_main_process:
        said = "--software-deployment-method conda: there is no conda here"
        print(f"warning: {said}; the active environment is used", file=sys.stderr)

for file in workflow.configfiles:
    if wrong := files.problem(Path(file)):
        stop(wrong)

for key, value in workflow.config_settings.config.items():
    try:
        config[key] = typed(config[key])
    except (yaml.YAMLError, ValueError, RecursionError):
        stop(f"--config {key}: {value!r} is no YAML; give it as in {key}=[0, 1]")

try:
    CONFIG = configuration.load(config, where())
    if workflow.is_main_process:
        configuration.check_places(CONFIG.values, where())
except configuration.ConfigError as error:
    stop(error)

VALUES = CONFIG.values
SPECS = CONFIG.every
ENVIRONMENT = f"{workflow.basedir}/environment.yml"
# As Snakemake writes paths: ./a//b/ is a/b.
RESULTS = str(Path(VALUES["output"]["results"]))
FIGURE_FOLDER = str(Path(VALUES["output"]["figures"]))
RUN_FOLDER = f"{RESULTS}/runs/{VALUES['name']}"
CALIBRATION = f"{RUN_FOLDER}/calibration"
FOLDERS = {
    kind: RUN_FOLDER for kind in ("accuracy", "timing", "planners", "sums", "hybrid")
}
FOLDERS |= {kind: CALIBRATION for kind in ("layers", "exchanges")}
CIFAR10 = f"{VALUES['data']['root']}/cifar10.npz"
IMAGENET100 = f"{VALUES['data']['root']}/imagenet100"
# Where runs happen: part of the command, and no parameter of a rule, since it repeats no run.
PLACE = launching.settings(VALUES, workflow=os.getpid())
LAUNCH_PLACE = shlex.quote(PLACE.to_json()).replace("{", "{{").replace("}", "}}")
ALL_CORES = (
    workflow.resource_settings.cores or 1
)  # a timed run has the machine to itself; the jobs of a cluster ask for their own
# What a training run takes of them. On other hosts it takes processors and GPUs that Snakemake does not count: unless a
# cluster does, one run goes after the other.
TRAINING_CORES = (
    VALUES["workers"] * VALUES["threads"]
    if VALUES["launch"]["by"] == "local" or not workflow.local_exec
    else ALL_CORES
)
VARIANTS = {name: one.title for name, one in variants.chosen(VALUES).items()}
MODELS = {name: plugins.describe("models", name)["title"] for name in VALUES["models"]}
# The paper's figures: a model and what is drawn of it -> number. The figures of other models carry their names.
NUMBERS = {
    ("resnet20", "train_accuracy"): 5,
    ("resnet20", "train_loss"): 6,
    ("vgg16", "train_accuracy"): 7,
    ("vgg16", "train_loss"): 8,
    ("resnet50", "train_accuracy"): 9,
    ("resnet50", "train_loss"): 10,
    ("resnet20", "breakdown"): 11,
    ("vgg16", "breakdown"): 12,
    ("resnet50", "breakdown"): 13,
}
DRAWN = figures.of_models(
    VALUES["models"], NUMBERS, timed=bool(VALUES["timing"]["ratios"])
)
# What the rules "all" and "studies" ask for; studies add their own.
TARGETS, STUDY_TARGETS = [], []


def queue():
    """What the configuration runs: folder below the runs' folder -> spec."""
    own = CONFIG.runs | grid.calibrations(VALUES)
    return {
        os.path.relpath(f"{FOLDERS[spec.kind]}/{name}", RUN_FOLDER): spec
        for name, spec in own.items()
    }


def check_report():
    """Stop if the page of all tables and figures would overwrite the output of a rule."""
    page = os.path.normpath(VALUES["output"]["report"])
    for one in workflow.rules:
        if any(output.match(page) for output in one.output):
            stop(
                f"{where()}: output.report: {page} is written by {one.name}; give another file, such as "
                f"{RESULTS}/report.html"
            )


def make_report():
    """One page of all tables and figures that are there, those of studies too; nothing before the runs are collected."""
    if not Path(f"{RESULTS}/provenance.json").exists():
        return ""
    # With pandas, which no job's own Snakemake needs.
    from dlgs_bench.paper import findings
    from dlgs_bench.report import page
    from dlgs_bench.report.names import Names

    files = list(dict.fromkeys([*TARGETS, *STUDY_TARGETS]))
    found = findings.write(Path(RESULTS), Names(VARIANTS, MODELS), KEPT_ACCURACY)
    page.write(
        Path(VALUES["output"]["report"]),
        Path(RESULTS),
        files,
        found,
        findings.TERMS,
        findings.ABOUT,
    )
    return f", all in {VALUES['output']['report']}"


onstart:
    try:
        if workflow.execution_settings.lock:
            lock.hold()
        if CONFIG.warning:
            print(f"warning: {CONFIG.warning}", file=sys.stderr)
        configuration.check_machine(VALUES, where(), jobs=not workflow.local_exec)
        if Path(CIFAR10).exists():
            cifar10.verify_file(Path(CIFAR10))
        if Path(f"{IMAGENET100}/index.npz").exists():
            imagenet100.verify(Path(IMAGENET100))
        print(progress.announce(Path(RUN_FOLDER), queue()), file=sys.stderr)
    except (configuration.ConfigError, DataError) as error:
        stop(error)
    except OSError as error:
        stop(f"{error.strerror}: {error.filename}")


onsuccess:
    try:
        page = make_report()
    except OSError as error:
        stop(f"{error.strerror}: {error.filename or VALUES['output']['report']}")
    print(f"done: tables in {RESULTS}/, figures in {FIGURE_FOLDER}/{page}")
    print(f"minutes of its runs: {progress.spent(Path(RUN_FOLDER))}")
    print(f"minutes in all: {progress.against_announced(Path(RUN_FOLDER))}")
