# The runs that are not finished, and how long they will take: snakemake estimate. It makes trials, and the calibrations
# that the runs need anyway.
from dlgs_bench.config import trials

FOLDERS["trials"] = CALIBRATION
TRIAL_OF = {
    run: (name, label)
    for name, trial in trials.of(CONFIG.runs).items()
    for run, label in trial.labels.items()
}


use rule launch as trial with:
    input:
        data=data_of("trials"),
        plan=[],
        rate=rate_of("trials"),
        length=[],
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
        **resources_of("trials"),


# Trials, plans and rates of the runs that are not finished. It has no output, so it runs whenever it is requested.
rule estimate:
    input:
        trials=lambda wildcards: sorted(
            {
                f"{CALIBRATION}/{TRIAL_OF[run][0]}/run.json"
                for run in unfinished()
                if run in TRIAL_OF
            }
        ),
        plans=lambda wildcards: sorted(
            {
                f"{RUN_FOLDER}/plans/{plan}.json"
                for spec in unfinished().values()
                for plan in grid.plan_names(spec, CONFIG.runs)
            }
        ),
        rates=lambda wildcards: sorted(
            {
                rate_file(spec)
                for spec in unfinished().values()
                if spec.cluster.in_proportion
            }
        ),
    params:
        models=MODELS,
        variants=VARIANTS,
        folder=RUN_FOLDER,
        specs={run: spec.to_json() for run, spec in CONFIG.runs.items()},
        trial_of=TRIAL_OF,
        at_once=max(1, ALL_CORES // (VALUES["workers"] * VALUES["threads"])),
    log:
        f"{RESULTS}/logs/estimate.log",
    conda:
        ENVIRONMENT
    message:
        "estimate"
    script:
        "table.py"
