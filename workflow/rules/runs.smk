# Runs: one job is one run, which starts training processes. Timed runs have the machine to themselves.
wildcard_constraints:
    run="[A-Za-z0-9._-]+",


# What all runs share. The rules for the kinds of runs inherit from it.
rule launch:
    log:
        f"{RESULTS}/logs/launch.log",
    threads: ALL_CORES
    conda:
        ENVIRONMENT
    message:
        "{rule}: {wildcards.run}"
    shell:
        f"python -m dlgs_bench.launch {{params.spec:q}} {LAUNCH_ARGUMENT} {{params.folder:q}} {{log:q}}"
        " --plan {input.plan:q} --rate {input.rate:q} --length {input.length:q}"


use rule launch as accuracy with:
    input:
        data=data_of("accuracy"),
        plan=plan_of("accuracy"),
        rate=[],
        length=length_of,
    output:
        run_files("accuracy", "points.csv", "iterations.csv", "groups.csv", "sent.csv"),
    params:
        **run_params("accuracy"),
    log:
        f"{RESULTS}/logs/accuracy/{{run}}.log",
    threads: TRAINING_CORES
    priority: in_order("accuracy")
    resources:
        **resources_of("accuracy"),


use rule launch as timing with:
    input:
        data=data_of("timing"),
        plan=plan_of("timing"),
        rate=rate_of("timing"),
        length=[],
    output:
        run_files(
            "timing",
            "iterations.csv",
            "groups.csv",
            "sent.csv",
            "trace.csv",
            "trace.json",
        ),
    params:
        **run_params("timing"),
    log:
        f"{RESULTS}/logs/timing/{{run}}.log",
    resources:
        **resources_of("timing"),
