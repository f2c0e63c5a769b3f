# Timing runs with the paper's selection and with compiled selection.
if studied("selections"):
    STUDY_TARGETS.append(f"{RESULTS}/selections.csv")


use rule collect_timing as selections_timing with:
    input:
        timing=tables("timing", "iterations.csv", studied("selections")),
    output:
        f"{RESULTS}/selections_timing.csv",
    log:
        f"{RESULTS}/logs/selections_timing.log",


use rule artefact as selections_table with:
    input:
        timing=f"{RESULTS}/selections_timing.csv",
    output:
        **table_files("selections", "Selection"),
    params:
        **script_params("workflow/studies/selections/table.py"),
    log:
        f"{RESULTS}/logs/selections.log",
