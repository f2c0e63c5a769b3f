# Measured costs -> plans for merging layers.
rule calibrate_layers:
    input:
        code=code_of("layers"),
        images=images_of("layers"),
    output:
        f"{CALIBRATION}/layers/{{run}}/run.json",
        f"{CALIBRATION}/layers/{{run}}/layers.csv",
        f"{CALIBRATION}/layers/{{run}}/iterations.csv",
    params:
        spec=spec_of("layers"),
        folder=f"{CALIBRATION}/layers/{{run}}",
    log:
        f"{RESULTS}/logs/layers/{{run}}.log",
    threads: workflow.cores or 1
    resources:
        gpu=GPUS,
    conda:
        "../../environment.yml"
    message:
        "calibration of the layers of {wildcards.run}"
    shell:
        "python -m harness.launch {params.spec:q} {params.folder:q} {log:q}"


rule calibrate_exchanges:
    input:
        code=code_of("exchanges"),
    output:
        f"{CALIBRATION}/exchanges/{{run}}/run.json",
        f"{CALIBRATION}/exchanges/{{run}}/samples.csv",
    params:
        spec=spec_of("exchanges"),
        folder=f"{CALIBRATION}/exchanges/{{run}}",
    log:
        f"{RESULTS}/logs/exchanges/{{run}}.log",
    threads: workflow.cores or 1
    resources:
        gpu=GPUS,
    conda:
        "../../environment.yml"
    message:
        "calibration of {wildcards.run}"
    shell:
        "python -m harness.launch {params.spec:q} {params.folder:q} {log:q}"


rule plan:
    input:
        layers=lambda w: f"{layers_of(w.run)}/layers.csv",
        iterations=lambda w: f"{layers_of(w.run)}/iterations.csv",
        samples=lambda w: f"{exchanges_of(w.run)}/samples.csv",
        code=[
            f"harness/{room}.py"
            for room in ("calibrated", "costs", "planner", "timeline")
        ],
    output:
        f"{RUN_FOLDER}/plans/{{run}}.json",
    params:
        spec=lambda w: timed(w.run).to_json(),
        cost=CONFIG.values["plan_cost"],
    log:
        f"{RESULTS}/logs/plans/{{run}}.log",
    conda:
        "../../environment.yml"
    message:
        "plan for {wildcards.run}"
    script:
        "../scripts/plan.py"
