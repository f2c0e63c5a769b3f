# What each bucket sent in training, beside what it sent where it was timed.
if studied("densities"):
    STUDY_TARGETS.append(f"{FIGURE_FOLDER}/densities.svg")


def sent_by(kind):
    names = [name for name in CONFIG.studies["densities"] if name.startswith(kind)]
    return tables(kind, "sent.csv", [Path(name).name for name in names])


rule densities_collect:
    input:
        trained=sent_by("accuracy"),
        timed=sent_by("timing"),
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
