# The link rate at which this machine has the paper's ratio of computation to communication.
if named("timing"):
    STUDY_TARGETS.append(f"{RESULTS}/slowdown.csv")


use rule artefact as slowdown_table with:
    input:
        layers=calibrated("run.json"),
        rates=sorted({rate_file(timed(run)) for run in named("timing")}),
    output:
        **table_files("slowdown", "Slowdown"),
    params:
        **script_params("workflow/studies/slowdown/table.py"),
    log:
        f"{RESULTS}/logs/slowdown.log",
