# Hybrid parallelism compared with data-parallel training on the same samples.
HYBRID_TIMED = [
    run for run in of_kind("hybrid", "hybrid") if SPECS[f"hybrid/{run}"].timed
]
HYBRID_LEARNING = [
    run for run in of_kind("hybrid", "hybrid") if run not in HYBRID_TIMED
]
if HYBRID_TIMED:
    STUDY_TARGETS += [f"{RESULTS}/hybrid.csv", f"{FIGURE_FOLDER}/hybrid.svg"]
if HYBRID_LEARNING:
    STUDY_TARGETS += [
        f"{RESULTS}/hybrid-learning.csv",
        f"{FIGURE_FOLDER}/hybrid-learning.svg",
    ]


use rule launch as time_hybrid with:
    input:
        data=data_of("hybrid"),
        plan=[],
        rate=[],
        length=[],
    output:
        run_files("hybrid", "iterations.csv", "sent.csv", "learnt.csv"),
    params:
        **run_params("hybrid"),
    log:
        f"{RESULTS}/logs/hybrid/{{run}}.log",
    resources:
        **resources_of("hybrid"),


use rule artefact as hybrid_table with:
    input:
        hybrid=tables("hybrid", "iterations.csv", HYBRID_TIMED),
        timing=tables("timing", "iterations.csv", of_kind("hybrid", "timing")),
    output:
        **table_files("hybrid", "Hybrid parallelism"),
    params:
        **script_params("workflow/studies/hybrid/table.py"),
    log:
        f"{RESULTS}/logs/hybrid.log",


use rule artefact as hybrid_figure with:
    input:
        table=f"{RESULTS}/hybrid.csv",
    output:
        **figure_files("hybrid", "Hybrid parallelism"),
    params:
        **script_params("workflow/studies/hybrid/figure.py"),
    log:
        f"{RESULTS}/logs/figure-hybrid.log",


use rule artefact as hybrid_learning_table with:
    input:
        hybrid=tables("hybrid", "learnt.csv", HYBRID_LEARNING),
        parallel=tables("accuracy", "points.csv", of_kind("hybrid", "accuracy")),
    output:
        **table_files("hybrid-learning", "Hybrid parallelism: training"),
    params:
        **script_params("workflow/studies/hybrid/learning.py"),
    log:
        f"{RESULTS}/logs/hybrid-learning.log",


use rule artefact as hybrid_learning_figure with:
    input:
        table=f"{RESULTS}/hybrid-learning.csv",
    output:
        **figure_files("hybrid-learning", "Hybrid parallelism: training"),
    params:
        **script_params("workflow/studies/hybrid/learning_figure.py"),
    log:
        f"{RESULTS}/logs/figure-hybrid-learning.log",
