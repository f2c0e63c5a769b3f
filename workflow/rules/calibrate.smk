# Measured costs -> plans for merging layers -> what the time model predicts for the timing runs.
CALIBRATION = f"{RUN_FOLDER}/calibration"


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
        layers=lambda w: f"{CALIBRATION}/layers/{timed(w.run).model}/layers.csv",
        iterations=lambda w: f"{CALIBRATION}/layers/{timed(w.run).model}/iterations.csv",
        samples=lambda w: f"{CALIBRATION}/exchanges/{configuration.exchange_name(timed(w.run))}/samples.csv",
        code=["harness/timeline.py", "harness/planner.py", "harness/costs.py"],
    output:
        f"{RUN_FOLDER}/plans/{{run}}.json",
    params:
        spec=lambda w: timed(w.run).to_json(),
    log:
        f"{RESULTS}/logs/plans/{{run}}.log",
    conda:
        "../../environment.yml"
    message:
        "plan for {wildcards.run}"
    script:
        "../scripts/plan.py"


rule prediction:
    input:
        timing=expand(f"{RUN_FOLDER}/timing/{{run}}/groups.csv", run=runs_of("timing")),
        layers=expand(
            f"{CALIBRATION}/layers/{{run}}/layers.csv", run=calibrations_of("layers")
        ),
        samples=expand(
            f"{CALIBRATION}/exchanges/{{run}}/samples.csv",
            run=calibrations_of("exchanges"),
        ),
        code=[
            "harness/timeline.py",
            "harness/costs.py",
            "harness/timing_summary.py",
            "harness/style.py",
        ],
    output:
        csv=f"{RESULTS}/prediction.csv",
        md=f"{RESULTS}/prediction.md",
        html=report(
            f"{RESULTS}/prediction.html",
            caption="../report/artefact.rst",
            category="Studies",
            labels={"artefact": "Predicted against measured"},
        ),
        tex=f"{RESULTS}/prediction.tex",
    params:
        caption=lambda w: plugins.docstring("workflow/scripts/tables/prediction.py"),
    log:
        f"{RESULTS}/logs/prediction.log",
    conda:
        "../../environment.yml"
    message:
        "predicted against measured"
    script:
        "../scripts/tables/prediction.py"


rule timeline:
    input:
        run=f"{RUN_FOLDER}/timing/{{run}}/run.json",
        trace=f"{RUN_FOLDER}/timing/{{run}}/trace.csv",
        groups=f"{RUN_FOLDER}/timing/{{run}}/groups.csv",
        layers=rules.plan.input.layers,
        iterations=rules.plan.input.iterations,
        samples=rules.plan.input.samples,
        code=[
            "workflow/scripts/figures/timeline.py",
            "harness/timeline.py",
            "harness/costs.py",
            "harness/style.py",
        ],
    output:
        svg=report(
            f"{FIGURE_FOLDER}/timeline-{{run}}.svg",
            caption="../report/artefact.rst",
            category="Studies",
            labels={"artefact": "Timeline of {run}"},
        ),
        png=f"{FIGURE_FOLDER}/timeline-{{run}}.png",
    params:
        caption=lambda w: plugins.docstring("workflow/scripts/figures/timeline.py"),
    log:
        f"{RESULTS}/logs/timeline-{{run}}.log",
    conda:
        "../../environment.yml"
    message:
        "timeline of {wildcards.run}"
    script:
        "../scripts/figures/timeline.py"


rule studies:
    input:
        rules.prediction.output,
        expand(
            f"{FIGURE_FOLDER}/timeline-{{run}}.svg",
            run=[
                r
                for r in runs_of("timing")
                if plugins.scope(timed(r).method) == "plan"
            ],
        ),
