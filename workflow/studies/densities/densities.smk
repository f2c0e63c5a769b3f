# The part of the entries that a sparsifier sends in training, next to the part at which it was timed.
if studied("densities"):
    STUDY_TARGETS.append(f"{FIGURE_FOLDER}/densities.svg")


use rule artefact as densities_collect with:
    input:
        trained=tables("accuracy", "iterations.csv", of_kind("densities", "accuracy")),
        timed=tables("timing", "iterations.csv", of_kind("densities", "timing")),
    output:
        f"{RESULTS}/densities.csv",
    params:
        **script_params("workflow/studies/densities/collect.py"),
    log:
        f"{RESULTS}/logs/densities_collect.log",


use rule artefact as densities_figure with:
    input:
        f"{RESULTS}/densities.csv",
    output:
        **figure_files("densities", "Density in training"),
    params:
        **script_params("workflow/studies/densities/figure.py"),
    log:
        f"{RESULTS}/logs/figure-densities.log",
