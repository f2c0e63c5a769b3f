# Real training processes: one job is one run. Timed runs have the machine to themselves.
wildcard_constraints:
    run="[a-z0-9._-]+",


rule accuracy:
    input:
        code=code_of("accuracy"),
        images=images_of("accuracy"),
    output:
        f"{RUN_FOLDER}/accuracy/{{run}}/run.json",
        f"{RUN_FOLDER}/accuracy/{{run}}/points.csv",
        f"{RUN_FOLDER}/accuracy/{{run}}/iterations.csv",
    params:
        spec=spec_of("accuracy"),
        folder=f"{RUN_FOLDER}/accuracy/{{run}}",
    log:
        f"{RESULTS}/logs/accuracy/{{run}}.log",
    threads: CONFIG.values["workers"] * CONFIG.values["threads"]
    resources:
        gpu=CONFIG.values["workers"] if CONFIG.values["device"] == "cuda" else 0,
    conda:
        "../../environment.yml"
    message:
        "accuracy run {wildcards.run}"
    shell:
        "python -m harness.launch {params.spec:q} {params.folder:q} {log:q}"


rule timing:
    input:
        code=code_of("timing"),
        images=images_of("timing"),
    output:
        f"{RUN_FOLDER}/timing/{{run}}/run.json",
        f"{RUN_FOLDER}/timing/{{run}}/iterations.csv",
    params:
        spec=spec_of("timing"),
        folder=f"{RUN_FOLDER}/timing/{{run}}",
    log:
        f"{RESULTS}/logs/timing/{{run}}.log",
    threads: workflow.cores or 1  # all of them: nothing else may run meanwhile
    resources:
        gpu=CONFIG.values["workers"] if CONFIG.values["device"] == "cuda" else 0,
    conda:
        "../../environment.yml"
    message:
        "timing run {wildcards.run}"
    shell:
        "python -m harness.launch {params.spec:q} {params.folder:q} {log:q}"
