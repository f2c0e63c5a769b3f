# Accuracy against time, from the kept long runs and the kept Table 2: snakemake accuracy_time. Nothing is
# trained or timed for it, and its files are kept, too.
ACCURACY_TIME = f"{workflow.basedir}/results/reference-long-training/accuracy-time"
ACCURACY_TIME_INPUT = {
    "accuracy": KEPT_ACCURACY,
    "timing": sorted(
        map(str, Path(workflow.basedir).glob("results/reference/timing.csv*"))
    ),
    "rates": f"{workflow.basedir}/results/reference-studies/rates_timing.csv",
}


rule accuracy_time:
    input:
        f"{ACCURACY_TIME}.csv",
        f"{ACCURACY_TIME}.svg",


use rule artefact as accuracy_time_table with:
    input:
        **ACCURACY_TIME_INPUT,
    output:
        csv=f"{ACCURACY_TIME}.csv",
        md=f"{ACCURACY_TIME}.md",
        tex=temp(f"{RESULTS}/accuracy-time.tex"),
        html=temp(f"{RESULTS}/accuracy-time.html"),
    params:
        **script_params("workflow/studies/accuracy_time/table.py"),
    log:
        f"{RESULTS}/logs/accuracy-time.log",


use rule artefact as accuracy_time_figure with:
    input:
        **ACCURACY_TIME_INPUT,
    output:
        svg=f"{ACCURACY_TIME}.svg",
        png=temp(f"{FIGURE_FOLDER}/accuracy-time.png"),
    params:
        **script_params("workflow/studies/accuracy_time/figure.py"),
    log:
        f"{RESULTS}/logs/figure-accuracy-time.log",
