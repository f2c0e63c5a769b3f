# The share of its entries that a method sends in training, next to the share at which it was timed.
if studied("densities"):
    STUDY_TARGETS.append(f"{FIGURE_FOLDER}/densities.svg")


rule densities_collect:
    input:
        trained=tables("accuracy", "iterations.csv", of_kind("densities", "accuracy")),
        timed=tables("timing", "iterations.csv", of_kind("densities", "timing")),
    output:
        f"{RESULTS}/densities.csv",
    params:
        **script_params("workflow/studies/densities/collect.py"),
    log:
        f"{RESULTS}/logs/densities_collect.log",
    conda:
        ENVIRONMENT
    message:
        "collecting the densities"
    script:
        "collect.py"


rule densities_figure:
    input:
        f"{RESULTS}/densities.csv",
    output:
        **figure_files("densities", "Density in training"),
    params:
        **script_params("workflow/studies/densities/figure.py"),
    log:
        f"{RESULTS}/logs/figure-densities.log",
    conda:
        ENVIRONMENT
    message:
        "figure of densities"
    script:
        "figure.py"
