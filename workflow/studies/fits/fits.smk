# The calibrated costs of buckets, and the curves through them that planners use.
if named("timing"):
    STUDY_TARGETS += [f"{FIGURE_FOLDER}/fits-{model}.svg" for model in VALUES["models"]]


use rule artefact as fits_figure with:
    input:
        # Uncompressed takes turns in several runs, but is calibrated once.
        samples=lambda w: sorted(
            {
                f"{folder}/samples.csv"
                for run in usual(named("timing"))
                if timed(run).training.model == w.model
                for folder in exchanges_of(run)
            }
        ),
    output:
        **figure_files("fits-{model}", "Calibration of {model}"),
        csv=f"{RESULTS}/fits-{{model}}.csv",
    params:
        **script_params(
            "workflow/studies/fits/figure.py",
            caption=lambda w: f"Calibration of {MODELS[w.model]}: "
            + fingerprint.docstring("workflow/studies/fits/figure.py"),
        ),
    log:
        f"{RESULTS}/logs/figure-fits-{{model}}.log",
    message:
        "figure of the calibration of {wildcards.model}"
