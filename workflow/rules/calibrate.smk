# Measured costs -> plans for merging layers.
use rule launch as calibrate_layers with:
    input:
        data=data_of("layers"),
        plan=[],
    output:
        run_files("layers", "layers.csv", "iterations.csv"),
    params:
        **run_params("layers"),
    log:
        f"{RESULTS}/logs/layers/{{run}}.log",
    resources:
        gpu=gpus_of("layers"),


use rule launch as calibrate_exchanges with:
    input:
        plan=[],
    output:
        run_files("exchanges", "samples.csv"),
    params:
        **run_params("exchanges"),
    log:
        f"{RESULTS}/logs/exchanges/{{run}}.log",
    resources:
        gpu=gpus_of("exchanges"),


# A checkpoint: a run that reads a plan is repeated if the new plan differs, not because it was made anew.
checkpoint plan:
    input:
        layers=lambda w: f"{layers_of(w.run)}/layers.csv",
        iterations=lambda w: f"{layers_of(w.run)}/iterations.csv",
        samples=lambda w: f"{exchanges_of(w.run)}/samples.csv",
    output:
        f"{RUN_FOLDER}/plans/{{run}}.json",
    params:
        spec=lambda w: timed(w.run).to_json(),
        cost=VALUES["plan_cost"],
        code=code.fingerprints(code.behind_script("workflow/scripts/plan.py")),
    log:
        f"{RESULTS}/logs/plans/{{run}}.log",
    conda:
        ENVIRONMENT
    message:
        "plan for {wildcards.run}"
    script:
        "../scripts/plan.py"
