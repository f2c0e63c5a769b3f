# The groups of every planner, predicted and measured.
if studied("planners"):
    STUDY_TARGETS += [f"{RESULTS}/planners.csv", f"{FIGURE_FOLDER}/planners.svg"]


use rule launch as time_planners with:
    input:
        data=data_of("planners"),
        plan=plan_of("planners"),
        rate=rate_of("planners"),
        length=[],
    output:
        run_files("planners", "iterations.csv", "groups.csv"),
    params:
        **run_params("planners"),
    log:
        f"{RESULTS}/logs/planners/{{run}}.log",
    resources:
        **resources_of("planners"),


use rule artefact as planners_table with:
    input:
        timing=tables("planners", "iterations.csv", studied("planners")),
        plans=[f"{RUN_FOLDER}/plans/{run}.json" for run in studied("planners")],
    output:
        **table_files("planners", "Planners"),
        timing=f"{RESULTS}/planners_timing.csv",
    params:
        **script_params("workflow/studies/planners/table.py"),
    log:
        f"{RESULTS}/logs/planners.log",


use rule artefact as planners_figure with:
    input:
        table=f"{RESULTS}/planners.csv",
    output:
        **figure_files("planners", "Planners"),
    params:
        **script_params("workflow/studies/planners/figure.py"),
    log:
        f"{RESULTS}/logs/figure-planners.log",
