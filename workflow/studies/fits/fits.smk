# What the planners know of a bucket's cost: calibration and the lines through it.
STUDY_TARGETS += [f"{FIGURE_FOLDER}/fits-{model}.svg" for model in VALUES["models"]]


def samples_of(wildcards):
    """The calibrations of the exchanges of one model's timing runs."""
    runs = [
        run for run in named("timing") if timed(run).training.model == wildcards.model
    ]
    return [f"{exchanges_of(run)}/samples.csv" for run in runs]


rule fits_figure:
    input:
        samples=samples_of,
    output:
        **figure_files("fits-{model}", "Calibration and its fits: {model}"),
        csv=f"{RESULTS}/fits-{{model}}.csv",
    params:
        **script_params("workflow/studies/fits/figure.py"),
    log:
        f"{RESULTS}/logs/figure-fits-{{model}}.log",
    conda:
        ENVIRONMENT
    message:
        "figure of fits of {wildcards.model}"
    script:
        "figure.py"
