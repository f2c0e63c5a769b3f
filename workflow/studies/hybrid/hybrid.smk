# Hybrid parallelism compared with data-parallel training on the same samples.
if studied("hybrid"):
    STUDY_TARGETS += [f"{RESULTS}/hybrid.csv", f"{FIGURE_FOLDER}/hybrid.svg"]


use rule launch as time_hybrid with:
    input:
        data=data_of("hybrid"),
        plan=[],
        rate=[],
        length=[],
    output:
        run_files("hybrid", "iterations.csv", "sent.csv"),
    params:
        **run_params("hybrid"),
    log:
        f"{RESULTS}/logs/hybrid/{{run}}.log",


use rule artefact as hybrid_table with:
    input:
        hybrid=tables("hybrid", "iterations.csv", of_kind("hybrid", "hybrid")),
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
