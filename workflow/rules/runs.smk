# Real training processes: one job is one run. Timed runs have the machine to themselves.
wildcard_constraints:
    run="[a-z0-9._-]+",


rule accuracy:
    input:
        code=code_of("accuracy"),
        images=images_of("accuracy"),
        plan=plan_of("accuracy"),
    output:
        f"{RUN_FOLDER}/accuracy/{{run}}/run.json",
        f"{RUN_FOLDER}/accuracy/{{run}}/points.csv",
        f"{RUN_FOLDER}/accuracy/{{run}}/iterations.csv",
        f"{RUN_FOLDER}/accuracy/{{run}}/groups.csv",
        f"{RUN_FOLDER}/accuracy/{{run}}/sent.csv",
    params:
        spec=spec_of("accuracy"),
        folder=f"{RUN_FOLDER}/accuracy/{{run}}",
    log:
        f"{RESULTS}/logs/accuracy/{{run}}.log",
    threads: CONFIG.values["workers"] * CONFIG.values["threads"]
    resources:
        gpu=GPUS,
    conda:
        "../../environment.yml"
    message:
        "accuracy run {wildcards.run}"
    shell:
        "python -m harness.launch {params.spec:q} {params.folder:q} {log:q} {input.plan:q}"


rule timing:
    input:
        code=code_of("timing"),
        images=images_of("timing"),
        plan=plan_of("timing"),
    output:
        f"{RUN_FOLDER}/timing/{{run}}/run.json",
        f"{RUN_FOLDER}/timing/{{run}}/iterations.csv",
        f"{RUN_FOLDER}/timing/{{run}}/groups.csv",
        f"{RUN_FOLDER}/timing/{{run}}/sent.csv",
        f"{RUN_FOLDER}/timing/{{run}}/trace.csv",
        f"{RUN_FOLDER}/timing/{{run}}/trace.json",
    params:
        spec=spec_of("timing"),
        folder=f"{RUN_FOLDER}/timing/{{run}}",
    log:
        f"{RESULTS}/logs/timing/{{run}}.log",
    threads: workflow.cores or 1  # all of them: nothing else may run meanwhile
    resources:
        gpu=GPUS,
    conda:
        "../../environment.yml"
    message:
        "timing run {wildcards.run}"
    shell:
        "python -m harness.launch {params.spec:q} {params.folder:q} {log:q} {input.plan:q}"
