# What is still to run, and how long it will take: snakemake estimate. Trials run for it, and the calibrations that the
# runs need anyway.
from harness.config import trials
from harness.timemodel import estimate

FOLDERS["trials"] = CALIBRATION
TRIALS = trials.of(CONFIG.runs)


def estimate_left():
    """The runs that are not finished."""
    return {
        name: spec
        for name, spec in CONFIG.runs.items()
        if not estimate.finished(Path(f"{RUN_FOLDER}/{name}"), spec)
    }


def estimate_input(wildcards):
    """The trials of the runs that are not finished, and the plans and rates that these runs will read."""
    left = estimate_left()
    plans = {grid.plan_name(spec, CONFIG.runs) for spec in left.values()} - {None}
    return {
        "trials": [
            f"{CALIBRATION}/{name}/run.json"
            for name, trial in TRIALS.items()
            if trial.labels.keys() & left
        ],
        "plans": [f"{RUN_FOLDER}/plans/{plan}.json" for plan in sorted(plans)],
        "rates": sorted(
            {rate_file(spec) for spec in left.values() if spec.cluster.in_proportion}
        ),
    }


use rule launch as trial with:
    input:
        data=data_of("trials"),
        plan=[],
        rate=rate_of("trials"),
    output:
        run_files(
            "trials",
            "iterations.csv",
            "groups.csv",
            "sent.csv",
            "trace.csv",
            "trace.json",
        ),
    params:
        **run_params("trials"),
    log:
        f"{RESULTS}/logs/trials/{{run}}.log",
    resources:
        gpu=gpus_of("trials"),


# No output: it looks anew each time that it is asked.
rule estimate:
    input:
        unpack(estimate_input),
    params:
        models=MODELS,
        variants=VARIANTS,
        folder=RUN_FOLDER,
        runs=lambda wildcards: {
            run: (SPECS[run].to_json(), name, label)
            for name, trial in TRIALS.items()
            for run, label in trial.labels.items()
        },
        at_once=max(1, ALL_CORES // (VALUES["workers"] * VALUES["threads"])),
    log:
        f"{RESULTS}/logs/estimate.log",
    conda:
        ENVIRONMENT
    message:
        "estimate"
    script:
        "table.py"
