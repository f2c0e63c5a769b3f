# Beyond the paper: the time model against the clock, the planners, the refresh interval.
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


rule fits:
    input:
        samples=expand(
            f"{CALIBRATION}/exchanges/{{run}}/samples.csv",
            run=calibrations_of("exchanges"),
        ),
        code=[
            "workflow/scripts/figures/fits.py",
            "harness/costs.py",
            "harness/tidy.py",
            "harness/style.py",
        ],
    output:
        svg=report(
            f"{FIGURE_FOLDER}/fits.svg",
            caption="../report/artefact.rst",
            category="Studies",
            labels={"artefact": "Calibration and its fits"},
        ),
        png=f"{FIGURE_FOLDER}/fits.png",
    params:
        caption=lambda w: plugins.docstring("workflow/scripts/figures/fits.py"),
    log:
        f"{RESULTS}/logs/fits.log",
    conda:
        "../../environment.yml"
    message:
        "calibration and its fits"
    script:
        "../scripts/figures/fits.py"


rule time_planners:
    input:
        code=code_of("planners"),
        images=images_of("planners"),
        plan=plan_of("planners"),
    output:
        f"{RUN_FOLDER}/planners/{{run}}/run.json",
        f"{RUN_FOLDER}/planners/{{run}}/iterations.csv",
        f"{RUN_FOLDER}/planners/{{run}}/groups.csv",
    params:
        spec=spec_of("planners"),
        folder=f"{RUN_FOLDER}/planners/{{run}}",
    log:
        f"{RESULTS}/logs/planners/{{run}}.log",
    threads: workflow.cores or 1
    resources:
        gpu=GPUS,
    conda:
        "../../environment.yml"
    message:
        "timing the planners of {wildcards.run}"
    shell:
        "python -m harness.launch {params.spec:q} {params.folder:q} {log:q} {input.plan:q}"


rule planners:
    input:
        timing=expand(
            f"{RUN_FOLDER}/planners/{{run}}/iterations.csv", run=studies_of("planners")
        ),
        plans=expand(f"{RUN_FOLDER}/plans/{{run}}.json", run=studies_of("planners")),
        code=["harness/timing_summary.py", "harness/tidy.py", "harness/style.py"],
    output:
        csv=f"{RESULTS}/planners.csv",
        md=f"{RESULTS}/planners.md",
        html=report(
            f"{RESULTS}/planners.html",
            caption="../report/artefact.rst",
            category="Studies",
            labels={"artefact": "Planners"},
        ),
        tex=f"{RESULTS}/planners.tex",
    params:
        caption=lambda w: plugins.docstring("workflow/scripts/tables/planners.py"),
    log:
        f"{RESULTS}/logs/planners.log",
    conda:
        "../../environment.yml"
    message:
        "planners"
    script:
        "../scripts/tables/planners.py"


rule collect_refresh:
    input:
        points=expand(
            f"{RUN_FOLDER}/accuracy/{{run}}/points.csv", run=studies_of("accuracy")
        ),
        code=["harness/tidy.py"],
    output:
        accuracy=f"{RESULTS}/refresh_accuracy.csv",
        density=f"{RESULTS}/refresh_density.csv",
    log:
        f"{RESULTS}/logs/collect_refresh.log",
    conda:
        "../../environment.yml"
    message:
        "collecting the study of the refresh interval"
    script:
        "../scripts/collect_refresh.py"


rule study_figure:
    input:
        lambda w: {
            "planners": [f"{RESULTS}/planners.csv"],
            "refresh": [
                f"{RESULTS}/refresh_accuracy.csv",
                f"{RESULTS}/refresh_density.csv",
            ],
            "prediction": [f"{RESULTS}/prediction.csv"],
        }[w.study],
        code=lambda w: [
            f"workflow/scripts/figures/{w.study}.py",
            "harness/style.py",
        ],
    output:
        svg=report(
            f"{FIGURE_FOLDER}/{{study}}.svg",
            caption="../report/artefact.rst",
            category="Studies",
            labels={"artefact": "{study}"},
        ),
        png=f"{FIGURE_FOLDER}/{{study}}.png",
    params:
        caption=lambda w: plugins.docstring(f"workflow/scripts/figures/{w.study}.py"),
    wildcard_constraints:
        study="planners|refresh|prediction",
    log:
        f"{RESULTS}/logs/figure-{{study}}.log",
    conda:
        "../../environment.yml"
    message:
        "figure of the study: {wildcards.study}"
    script:
        "../scripts/figures/{wildcards.study}.py"


rule studies:
    input:
        rules.prediction.output,
        rules.planners.output,
        expand(
            f"{FIGURE_FOLDER}/{{study}}.svg",
            study=["fits", "planners", "refresh", "prediction"],
        ),
        expand(
            f"{FIGURE_FOLDER}/timeline-{{run}}.svg",
            run=[
                r
                for r in runs_of("timing")
                if plugins.scope(timed(r).method) == "plan"
            ],
        ),
