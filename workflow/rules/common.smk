# Validation, discovery and targets. Nothing here imports torch.
import json
import os
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import yaml
from snakemake import cli
from snakemake.utils import update_config

sys.path.insert(0, workflow.basedir)

from dlgs_bench import fingerprint, plugins
from dlgs_bench.config import (
    figures,
    files,
    grid,
    launching,
    studies,
    variants,
)
from dlgs_bench.config import load as configuration
from dlgs_bench.data.fetch import DataError, cifar10, imagenet100
from dlgs_bench.errors import meant
from dlgs_bench.launch import lock, progress, remaining
from dlgs_bench.paper import PAPERS_BATCH
from dlgs_bench.buckets import FIXED


def stop(error):
    """Print one line of error and exit, before anything runs."""
    print(f"error: {error}", file=sys.stderr)
    sys.exit(1)


def typed(value):
    """The values of --config with lists and mappings parsed as YAML. Snakemake leaves them as text."""
    if isinstance(value, dict):
        return {key: typed(part) for key, part in value.items()}
    if isinstance(value, list):
        return [typed(part) for part in value]
    return yaml.safe_load(value) if isinstance(value, str) and value else value


def where():
    """The files of the configuration, for error messages."""
    files = [os.path.relpath(f) for f in workflow.configfiles]
    return ", ".join(files) + (
        " and --config" if workflow.config_settings.config else ""
    )


def argument(text):
    """A text as one argument in the command of a rule, in which Snakemake reads braces as wildcards."""
    return shlex.quote(text).replace("{", "{{").replace("}", "}}")


for folder in (workflow.basedir, os.getcwd()):
    if "{" in folder or "}" in folder:  # Snakemake reads them as wildcards
        stop(
            f"{folder}: the path has braces; move the project to a folder without braces"
        )

if workflow.is_main_process:
    lock.free()  # before Snakemake checks the lock
    plugins.forget_errors()

CONDA = [m for m in workflow.deployment_settings.deployment_method if m.name == "CONDA"]
if CONDA and not shutil.which("conda"):
    workflow.deployment_settings.deployment_method -= {*CONDA}
    if workflow.is_main_process:
        why = "--software-deployment-method conda: conda is not installed"
        print(f"warning: {why}; the active environment is used", file=sys.stderr)

for file in workflow.configfiles:
    if wrong := files.problem(Path(file)):
        stop(wrong)

for key, value in workflow.config_settings.config.items():
    try:
        update_config(config, {key: typed(value)})  # text of the files stays text
    except (yaml.YAMLError, ValueError, RecursionError):
        stop(f"--config {key}: {value!r} is not valid YAML; give it as in {key}=[0, 1]")

try:
    CONFIG = configuration.load(config, where())
    if workflow.is_main_process:
        configuration.check_outputs_writable(CONFIG.values, where())
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
# Launch settings are a part of the command and not a parameter of a rule, since a change must not repeat runs.
LAUNCH_SETTINGS = launching.settings(VALUES, workflow=os.getpid())
LAUNCH_ARGUMENT = argument(LAUNCH_SETTINGS.to_json())
# A timed run has the machine to itself. The jobs of a cluster request their own cores.
ALL_CORES = workflow.resource_settings.cores or 1
# The cores of a training run. On other hosts a run uses processors and GPUs that Snakemake does not count, so runs
# follow each other, unless they are jobs of a cluster.
TRAINING_CORES = (
    VALUES["workers"] * VALUES["threads"]
    if VALUES["launch"]["by"] == "local" or not workflow.local_exec
    else ALL_CORES
)
CHOSEN = variants.chosen(VALUES)
VARIANTS = {name: one.title for name, one in CHOSEN.items()}
CHANGED = [name for name, one in CHOSEN.items() if one.changed]
MODELS = {name: plugins.describe("models", name)["title"] for name in VALUES["models"]}
# (model, value) -> number of the figure in the paper. The figures of other models are named after them.
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
# The targets of the rules "all" and "studies", and the latter by study. Studies add their targets.
TARGETS, STUDY_TARGETS, TARGETS_OF = [], [], {}


def kept_files(pattern):
    """The files of kept sets of results that match the pattern."""
    return sorted(map(str, Path(workflow.basedir, "results").glob(pattern)))


def queue():
    """Folder below the runs' folder -> spec, for the runs that the requested targets need."""
    made = {os.path.dirname(file) for job in workflow.dag.jobs for file in job.output}
    return {
        os.path.relpath(folder, RUN_FOLDER): spec
        for folder, spec in SPEC_OF_FOLDER.items()
        if folder in made
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


def check_targets():
    """Stop if a requested target makes nothing with this configuration, or is the name of no rule."""
    if not workflow.is_main_process:
        return
    known = {one.name: one for one in workflow.rules}
    given, others = cli.get_argument_parser().parse_known_args()
    if others:  # the value of an executor's option would look like a target
        return
    for name in given.targets:
        if name in known and not known[name].input and not known[name].output:
            stop(
                f"{where()}: {name}: the configuration has no runs for this study; "
                "see config/README.md, section Studies"
            )
        if name not in known and name.isidentifier() and not Path(name).exists():
            stop(
                f"{name}: not a target{meant(name, known)}; "
                "snakemake --list-target-rules lists the targets, which can also be files"
            )


def make_report():
    """Write one page with all existing tables and figures; the end of a sentence that names it.

    Studies whose runs are not finished are left out: their files are of another configuration, or old. It returns an
    empty string if the runs are not collected yet.
    """
    if not Path(f"{RESULTS}/provenance.json").exists():
        return ""
    # Imported here, since they import pandas, which the Snakemake process of a job does not need.
    from dlgs_bench.paper import findings
    from dlgs_bench.report import page
    from dlgs_bench.report.names import Names

    files = list(TARGETS)
    for study, targets in TARGETS_OF.items():
        if not CONFIG.studies.get(study) or measured(study):
            files += [file for file in targets if file not in files]
    page.write(
        Path(VALUES["output"]["report"]),
        Path(RESULTS),
        files,
        findings.write(
            Path(RESULTS),
            Names(VARIANTS, MODELS, frozenset(CHANGED)),
            KEPT_ACCURACY,
            [*TIDY, *filter(measured, CONFIG.studies)],
        ),
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
        print(
            progress.announce(Path(RUN_FOLDER), queue(), alone=lock.alone()),
            file=sys.stderr,
        )
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
    if walls := progress.spent(Path(RUN_FOLDER)):
        print(f"time of the runs by kind: {walls}")
    if took := progress.against_announced(Path(RUN_FOLDER)):
        print(f"time of the workflow: {took}")
