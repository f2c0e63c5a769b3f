# Beyond the paper: the time model against the clock, the planners, the refresh interval.
rule study_table:
    input:
        unpack(study_table_inputs),
        code=lambda w: code_behind(f"tables/{w.study}.py"),
    output:
        csv=f"{RESULTS}/{{study}}.csv",
        md=f"{RESULTS}/{{study}}.md",
        html=report(
            f"{RESULTS}/{{study}}.html",
            caption="../report/artefact.rst",
            category="Studies",
            labels=lambda w: {"artefact": STUDY_TABLES[w.study]},
        ),
        tex=f"{RESULTS}/{{study}}.tex",
    params:
        caption=lambda w: plugins.docstring(f"workflow/scripts/tables/{w.study}.py"),
    wildcard_constraints:
        study="|".join(STUDY_TABLES),
    log:
        f"{RESULTS}/logs/{{study}}.log",
    conda:
        "../../environment.yml"
    message:
        "table of the study: {wildcards.study}"
    script:
        "../scripts/tables/{wildcards.study}.py"


rule collect_study:
    input:
        timing=lambda w: expand(
            f"{RUN_FOLDER}/timing/{{run}}/iterations.csv", run=studied(w.study)
        ),
        code=code_behind("collect_study.py"),
    output:
        f"{RESULTS}/{{study}}_timing.csv",
    wildcard_constraints:
        study="rates|servers|selections",
    log:
        f"{RESULTS}/logs/collect_{{study}}.log",
    conda:
        "../../environment.yml"
    message:
        "collecting the study: {wildcards.study}"
    script:
        "../scripts/collect_study.py"


rule timeline:
    input:
        run=f"{RUN_FOLDER}/timing/{{run}}/run.json",
        trace=f"{RUN_FOLDER}/timing/{{run}}/trace.csv",
        groups=f"{RUN_FOLDER}/timing/{{run}}/groups.csv",
        layers=rules.plan.input.layers,
        iterations=rules.plan.input.iterations,
        samples=rules.plan.input.samples,
        code=code_behind("figures/timeline.py"),
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
        samples=sorted(
            {f"{exchanges_of(run)}/samples.csv" for run in runs_of("timing")}
        ),
        code=code_behind("figures/fits.py"),
    output:
        svg=report(
            f"{FIGURE_FOLDER}/fits.svg",
            caption="../report/artefact.rst",
            category="Studies",
            labels={"artefact": "Calibration and its fits"},
        ),
        png=f"{FIGURE_FOLDER}/fits.png",
        csv=f"{RESULTS}/fits.csv",
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


rule collect_refresh:
    input:
        points=expand(
            f"{RUN_FOLDER}/accuracy/{{run}}/points.csv", run=studied("refresh")
        ),
        code=code_behind("collect_refresh.py"),
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
            "rates": [f"{RESULTS}/rates.csv"],
            "map": [],
        }[w.study],
        calibration=lambda w: (
            sorted(
                {
                    f"{part(run)}/run.json"
                    for run in runs_of("timing")
                    for part in (layers_of, exchanges_of)
                }
            )
            if w.study in ("rates", "map")
            else []
        ),
        code=lambda w: code_behind(f"figures/{w.study}.py"),
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
        study="planners|refresh|prediction|rates|map",
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
        expand(
            f"{RESULTS}/{{study}}.csv",
            study=["prediction", "planners", "dilation"]
            + [
                study for study in ("rates", "servers", "selections") if studied(study)
            ],
        ),
        # The last two need links of a known rate.
        expand(
            f"{FIGURE_FOLDER}/{{study}}.svg",
            study=["fits", "planners", "refresh", "prediction"]
            + ["rates", "map"] * bool(studied("rates")),
        ),
        expand(
            f"{FIGURE_FOLDER}/timeline-{{run}}.svg",
            run=[
                r
                for r in runs_of("timing")
                if plugins.scope(timed(r).method) == "plan"
            ],
        ),
