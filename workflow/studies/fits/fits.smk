# What the planners know of a bucket's cost: calibration and the lines through it.
STUDY_TARGETS.append(f"{FIGURE_FOLDER}/fits.svg")


rule fits_figure:
    input:
        samples=calibrated("samples.csv", [exchanges_of]),
    output:
        **figure_files("fits", "Calibration and its fits"),
        csv=f"{RESULTS}/fits.csv",
    params:
        **script_params("workflow/studies/fits/figure.py"),
    log:
        f"{RESULTS}/logs/figure-fits.log",
    conda:
        ENVIRONMENT
    message:
        "figure of fits"
    script:
        "figure.py"
