# One iteration of each timing run that takes groups from a plan, drawn to scale.
STUDY_TARGETS += [
    f"{FIGURE_FOLDER}/timeline-{run}.svg"
    for run in named("timing")
    if grid.planned_by(timed(run)) == "groups"
]


rule timeline_figure:
    input:
        run=f"{RUN_FOLDER}/timing/{{run}}/run.json",
        trace=f"{RUN_FOLDER}/timing/{{run}}/trace.csv",
        groups=f"{RUN_FOLDER}/timing/{{run}}/groups.csv",
        layers=lambda w: f"{layers_of(w.run)}/layers.csv",
        iterations=lambda w: f"{layers_of(w.run)}/iterations.csv",
        samples=lambda w: f"{exchanges_of(w.run)}/samples.csv",
    output:
        **figure_files("timeline-{run}", "Timeline of {run}"),
    params:
        **script_params("workflow/studies/timeline/figure.py"),
    log:
        f"{RESULTS}/logs/timeline-{{run}}.log",
    conda:
        ENVIRONMENT
    message:
        "timeline of {wildcards.run}"
    script:
        "figure.py"
