# What each bucket sent in training, beside what it sent where it was timed.
if studied("densities"):
    STUDY_TARGETS.append(f"{FIGURE_FOLDER}/densities.svg")


rule densities_collect:
    input:
        trained=tables("accuracy", "sent.csv", of_kind("densities", "accuracy")),
        timed=tables("timing", "sent.csv", of_kind("densities", "timing")),
    output:
        f"{RESULTS}/densities.csv",
    params:
        **script_params("workflow/studies/densities/collect.py"),
    log:
        f"{RESULTS}/logs/densities_collect.log",
    conda:
        ENVIRONMENT
    message:
        "collecting the densities of buckets"
    script:
        "collect.py"


rule densities_figure:
    input:
        f"{RESULTS}/densities.csv",
    output:
        **figure_files("densities", "Density of buckets"),
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
