# The effect of the refresh interval on density and accuracy.
if studied("refresh"):
    STUDY_TARGETS.append(f"{FIGURE_FOLDER}/refresh.svg")


use rule artefact as refresh_collect with:
    input:
        points=tables("accuracy", "points.csv", studied("refresh")),
    output:
        accuracy=f"{RESULTS}/refresh_accuracy.csv",
        density=f"{RESULTS}/refresh_density.csv",
    params:
        **script_params("workflow/studies/refresh/collect.py"),
    log:
        f"{RESULTS}/logs/refresh_collect.log",


use rule artefact as refresh_figure with:
    input:
        accuracy=f"{RESULTS}/refresh_accuracy.csv",
        density=f"{RESULTS}/refresh_density.csv",
    output:
        **figure_files("refresh", "Refresh interval"),
    params:
        **script_params("workflow/studies/refresh/figure.py"),
    log:
        f"{RESULTS}/logs/figure-refresh.log",
