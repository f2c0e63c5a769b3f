# One iteration of each timing run that takes groups from a plan, drawn to scale.
STUDY_TARGETS += [
    f"{FIGURE_FOLDER}/timeline-{run}.svg"
    for run, (name, member) in MEMBERS.items()
    if name in CONFIG.runs and grid.planned_by(member) == "groups"
]


use rule artefact as timeline_figure with:
    input:
        **CALIBRATED,
        run=lambda w: f"{RUN_FOLDER}/{MEMBERS[w.run][0]}/run.json",
        trace=lambda w: f"{RUN_FOLDER}/{MEMBERS[w.run][0]}/trace.csv",
        groups=lambda w: f"{RUN_FOLDER}/{MEMBERS[w.run][0]}/groups.csv",
    output:
        **figure_files("timeline-{run}", "Timeline of {run}"),
    params:
        **script_params("workflow/studies/timeline/figure.py"),
        label=lambda w: MEMBERS[w.run][1].scheme.label,
    log:
        f"{RESULTS}/logs/timeline-{{run}}.log",
    message:
        "timeline of {wildcards.run}"
