# Iteration time over links of several rates.
if studied("rates"):
    STUDY_TARGETS.append(f"{RESULTS}/rates.csv")
    if not grid.streams(VALUES):  # the figure's lines are the time model's
        STUDY_TARGETS.append(f"{FIGURE_FOLDER}/rates.svg")


use rule collect_timing as rates_timing with:
    input:
        timing=tables("timing", "iterations.csv", studied("rates")),
    output:
        f"{RESULTS}/rates_timing.csv",
    log:
        f"{RESULTS}/logs/rates_timing.log",


use rule artefact as rates_table with:
    input:
        timing=f"{RESULTS}/rates_timing.csv",
    output:
        **table_files("rates", "Link rates"),
    params:
        **script_params("workflow/studies/rates/table.py"),
    log:
        f"{RESULTS}/logs/rates.log",


use rule artefact as rates_figure with:
    input:
        table=f"{RESULTS}/rates.csv",
        calibration=calibrated(
            "run.json", [layers_of, exchanges_of], ["selections"], among=usual
        ),
    output:
        **figure_files("rates", "Link rates"),
    params:
        **script_params("workflow/studies/rates/figure.py"),
    log:
        f"{RESULTS}/logs/figure-rates.log",
