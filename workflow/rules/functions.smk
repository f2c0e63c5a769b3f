# Functions for rules: names of runs, their files and parameters, and the parameters of scripts.
def named(kind):
    """The names of the runs of a kind in the paper's tables, without the kind."""
    return [Path(name).name for name, spec in CONFIG.runs.items() if spec.kind == kind]


def studied(study):
    """The names of the runs of a study, without their kind."""
    return [Path(name).name for name in CONFIG.studies[study]]


def of_kind(study, kind):
    """The names of a study's runs of a kind, without the kind."""
    return [Path(name).name for name in CONFIG.studies[study] if name.startswith(kind)]


def members_of(kind):
    """Name of a scheme's row -> (run, spec of the scheme alone), for the schemes that take turns in the runs of a kind.

    If a study times a scheme again, the run of the paper's tables counts.
    """
    return {
        grid.timing_name(member): (name, member)
        for name, spec in [*SPECS.items(), *CONFIG.runs.items()]
        if spec.kind == kind
        for member in spec.members.values()
    }


MEMBERS = members_of("timing")
EXCHANGED = members_of("exchanges")


def timed(run):
    """The spec of a timing run."""
    return SPECS[f"timing/{run}"]


def tables(kind, table, runs):
    """One table of each of these runs."""
    return [f"{FOLDERS[kind]}/{kind}/{run}/{table}" for run in runs]


def finished(table):
    """The table of each finished accuracy run, in the order of the runs."""
    files = tables("accuracy", table, named("accuracy"))
    return [file for file in files if Path(file).exists()]


def unfinished():
    """The runs that are not finished, name -> spec."""
    return remaining.unfinished(Path(RUN_FOLDER), CONFIG.runs)


def measured(study):
    """Whether all runs of a study are finished. Its tables can exist without them, from another configuration."""
    # A run can be one of the paper's, whose spec then counts.
    runs = {name: SPECS[name] for name in CONFIG.studies[study]}
    return bool(runs) and not remaining.unfinished(Path(RUN_FOLDER), runs)


def usual(runs):
    """These timing runs without those with ``more_workers``, so that each topology has one number of workers."""
    return [
        run
        for run in runs
        if timed(run).cluster.workers == grid.workers(VALUES, timed(run).topology)
    ]


def layers_of(run):
    """The calibration of the layers that a timing run trains."""
    return [f"{CALIBRATION}/layers/{grid.layers_name(timed(run))}"]


def exchanges_of(run):
    """The calibrations of the exchanges that a timing run makes."""
    names = map(grid.exchange_name, timed(run).members.values())
    return sorted(
        {f"{CALIBRATION}/{EXCHANGED[name][0]}" for name in names if name in EXCHANGED}
    )


def layers_file(table):
    """A table of the calibration of the layers of one timed scheme, wildcard ``run``."""
    return (
        lambda w: f"{CALIBRATION}/layers/{grid.layers_name(MEMBERS[w.run][1])}/{table}"
    )


# The calibrations of one timed scheme, wildcard ``run``.
CALIBRATED = {
    "layers": layers_file("layers.csv"),
    "iterations": layers_file("iterations.csv"),
    "samples": lambda w: f"{CALIBRATION}/{EXCHANGED[grid.exchange_name(MEMBERS[w.run][1])][0]}/samples.csv",
}


def calibrated(table, folders=(layers_of,), studies=(), among=lambda runs: runs):
    """One table of each calibration of the timing runs of the paper's tables and of these studies."""
    runs = named("timing") + [run for study in studies for run in studied(study)]
    runs = among(runs)
    return sorted(
        {f"{f}/{table}" for run in runs for folder in folders for f in folder(run)}
    )


# Folder of a run -> its spec in the configuration. A script refuses another run in the folder.
SPEC_OF_FOLDER = {f"{FOLDERS[spec.kind]}/{name}": spec for name, spec in SPECS.items()}


def specs_of(wildcards, input):
    """Folder -> spec, for the runs whose files are among the input."""
    folders = sorted({str(Path(file).parent) for file in input})
    return {
        folder: SPEC_OF_FOLDER[folder].to_json()
        for folder in folders
        if folder in SPEC_OF_FOLDER
    }


def run_params(kind):
    """The parameters of a run of this kind: its spec, its folder, and a fingerprint of the code behind its numbers."""

    def spec(wildcards):
        return SPECS[f"{kind}/{wildcards.run}"]

    return {
        "spec": lambda wildcards: spec(wildcards).to_json(),
        "folder": f"{FOLDERS[kind]}/{kind}/{{run}}",
        "code": lambda wildcards: fingerprint.fingerprints(
            fingerprint.behind_run(spec(wildcards))
        ),
    }


def run_files(kind, *tables):
    """The files that a run of this kind writes."""
    return [f"{FOLDERS[kind]}/{kind}/{{run}}/{file}" for file in ("run.json", *tables)]


def data_of(kind):
    """Wait for the data files of a run of this kind. They are not inputs, so that moving them repeats no run."""

    def file(wildcards):
        spec = SPECS[f"{kind}/{wildcards.run}"]
        if spec.trains and spec.training.data in ("cifar10", "imagenet100"):
            getattr(checkpoints, spec.training.data).get()
        return []

    return file


def plan_of(kind):
    """The plans that a run of this kind reads, if any. The run is repeated if their content changes."""

    def files(wildcards):
        names = grid.plan_names(SPECS[f"{kind}/{wildcards.run}"], CONFIG.runs | SPECS)
        return [checkpoints.plan.get(run=name).output[0] for name in names]

    return files


def rate_of(kind):
    """The rate file of a run of this kind, if its links are in proportion. A changed file repeats the run."""

    def file(wildcards):
        spec = SPECS[f"{kind}/{wildcards.run}"]
        if not spec.cluster.in_proportion:
            return []
        return checkpoints.rate.get(run=grid.layers_name(spec)).output[0]

    return file


def budgeted(layers):
    """An accuracy run with a budget whose length follows from this calibration of layers."""
    return next(
        spec
        for spec in CONFIG.runs.values()
        if spec.training.most_epochs and grid.layers_name(spec) == layers
    )


def length_of(wildcards):
    """The length file of an accuracy run, if the run has a budget."""
    spec = SPECS[f"accuracy/{wildcards.run}"]
    if not spec.training.most_epochs:
        return []
    return checkpoints.length.get(run=grid.layers_name(spec)).output[0]


def rate_file(spec):
    """The rate file of a run's model. It exists even if the run does not read it."""
    return f"{CALIBRATION}/rates/{grid.layers_name(spec)}.json"


def nodes_batch(model):
    """Samples per worker and step on the nodes whose ratio of computation to communication the testbed keeps."""
    return VALUES["models"][model].get("nodes_batch", VALUES["models"][model]["batch"])


def in_order(kind):
    """The priority of a run: runs of a kind start in the order of the configuration."""
    names = [name for name in CONFIG.runs | SPECS if name.startswith(f"{kind}/")]
    return lambda wildcards: len(names) - names.index(f"{kind}/{wildcards.run}")


def resources_of(kind):
    """The resources that a run of this kind requests. Each further attempt requests more time."""

    def of(name):
        def value(wildcards, attempt):
            requested = launching.resources(SPECS[f"{kind}/{wildcards.run}"], VALUES)[
                name
            ]
            return requested * attempt if name == "runtime" else requested

        return value

    return {name: of(name) for name in launching.RESOURCES}


def script_params(path, caption=None):
    """The parameters of a script that makes a table or a figure; ``path``: relative to the root of the project."""
    return {
        "script": path,
        "caption": caption or (lambda wildcards: fingerprint.docstring(path)),
        "variants": VARIANTS,
        "changed": CHANGED,
        "models": MODELS,
        "runs": specs_of,
        "code": fingerprint.fingerprints(fingerprint.behind_script(path)),
    }


def figure_params(path):
    """The parameters of a script that draws the figures of models, wildcard ``figure``."""

    def caption(wildcards):
        return f"{DRAWN[wildcards.figure].caption} {fingerprint.docstring(path)}"

    model = lambda wildcards: DRAWN[wildcards.figure].model
    value = lambda wildcards: DRAWN[wildcards.figure].value
    return script_params(path, caption) | {"model": model, "value": value}


def recipe(model, models=VALUES["models"]):
    """The epochs of a model's recipe, and the epochs at which its learning rate falls; empty without the model."""
    values = models.get(model, {})
    return {key: values[key] for key in ("epochs", "lr_steps") if key in values}


def figure_label(wildcards):
    """The label of a model's figure in Snakemake's report."""
    return {"artefact": DRAWN[wildcards.figure].label}


def table_files(name, label, category="Studies"):
    """The files of a table, which the report shows as ``label``."""
    files = {kind: f"{RESULTS}/{name}.{kind}" for kind in ("csv", "md", "tex")}
    return files | {"html": in_report(f"{RESULTS}/{name}.html", label, category)}


def figure_files(name, label, category="Studies"):
    """The files of a figure, which the report shows as ``label``."""
    svg, png = (f"{FIGURE_FOLDER}/{name}.{kind}" for kind in ("svg", "png"))
    return {"svg": in_report(svg, label, category), "png": png}


def in_report(file, label, category):
    """An output file with its caption and label in Snakemake's report."""
    return report(
        file,
        caption=f"{workflow.basedir}/workflow/report/artefact.rst",
        category=category,
        labels={"artefact": label} if isinstance(label, str) else label,
    )
