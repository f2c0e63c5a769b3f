# Predicted and measured times, for every timing run of Table 2.
if named("timing"):
    STUDY_TARGETS += [f"{RESULTS}/prediction.csv", f"{FIGURE_FOLDER}/prediction.svg"]


use rule artefact as prediction_table with:
    input:
        timing=tables("timing", "groups.csv", named("timing")),
        layers=calibrated("layers.csv"),
        samples=calibrated("samples.csv", [exchanges_of]),
    output:
        **table_files("prediction", "Predicted against measured"),
    params:
        **script_params("workflow/studies/prediction/table.py"),
    log:
        f"{RESULTS}/logs/prediction.log",


use rule artefact as prediction_figure with:
    input:
        table=f"{RESULTS}/prediction.csv",
    output:
        **figure_files("prediction", "Predicted against measured"),
    params:
        **script_params("workflow/studies/prediction/figure.py"),
    log:
        f"{RESULTS}/logs/figure-prediction.log",
