# Measured costs -> rates of links, plans for merging layers.
use rule launch as calibrate_layers with:
    input:
        data=data_of("layers"),
        plan=[],
        rate=[],
        length=[],
    output:
        run_files("layers", "layers.csv", "iterations.csv"),
    priority: 1000  # the estimates of all other runs depend on them
    params:
        **run_params("layers"),
    log:
        f"{RESULTS}/logs/layers/{{run}}.log",
    resources:
        **resources_of("layers"),


use rule launch as calibrate_exchanges with:
    input:
        plan=[],
        rate=rate_of("exchanges"),
        length=[],
    output:
        run_files("exchanges", "samples.csv"),
    params:
        **run_params("exchanges"),
    log:
        f"{RESULTS}/logs/exchanges/{{run}}.log",
    resources:
        **resources_of("exchanges"),


# A checkpoint like the plan: an accuracy run is repeated if its new length differs.
checkpoint length:
    input:
        iterations=f"{CALIBRATION}/layers/{{run}}/iterations.csv",
    output:
        f"{CALIBRATION}/lengths/{{run}}.json",
    params:
        spec=lambda w: budgeted(w.run).to_json(),
        runs=specs_of,
        code=fingerprint.fingerprints(
            fingerprint.behind_script("workflow/scripts/length.py")
        ),
    log:
        f"{RESULTS}/logs/lengths/{{run}}.log",
    conda:
        ENVIRONMENT
    message:
        "length of the training of {wildcards.run}"
    script:
        "../scripts/length.py"


# A checkpoint like the plan: runs over these links are repeated if the new rate differs.
checkpoint rate:
    input:
        iterations=f"{CALIBRATION}/layers/{{run}}/iterations.csv",
    output:
        f"{CALIBRATION}/rates/{{run}}.json",
    params:
        nodes=VALUES["testbed"]["nodes"],
        batch=lambda w: nodes_batch(SPECS[f"layers/{w.run}"].training.model),
        runs=specs_of,
        code=fingerprint.fingerprints(
            fingerprint.behind_script("workflow/scripts/rate.py")
        ),
    log:
        f"{RESULTS}/logs/rates/{{run}}.log",
    conda:
        ENVIRONMENT
    message:
        "rate of the links for {wildcards.run}"
    script:
        "../scripts/rate.py"


# A checkpoint: a run that reads a plan is repeated if the content of the plan changes, not if the plan is made again.
checkpoint plan:
    input:
        **CALIBRATED,
    output:
        f"{RUN_FOLDER}/plans/{{run}}.json",
    params:
        spec=lambda w: MEMBERS[w.run][1].to_json(),
        cost=VALUES["plan_cost"],
        runs=specs_of,
        code=fingerprint.fingerprints(
            fingerprint.behind_script("workflow/scripts/plan.py")
        ),
    log:
        f"{RESULTS}/logs/plans/{{run}}.log",
    conda:
        ENVIRONMENT
    message:
        "plan for {wildcards.run}"
    script:
        "../scripts/plan.py"
