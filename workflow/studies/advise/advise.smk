# Whether compressing pays on a given network: snakemake advise. It runs only calibrations.
from dlgs_bench.topology import ALL_GATHER

ADVISE = VALUES["studies"]["advise"]
ADVISE_LINK = VALUES["testbed"]["rate_mbit"]
ADVISE_NODES = ADVISE_LINK == grid.PROPORTIONAL
ADVISE_ASKED = {
    "there": {
        "workers": ADVISE["workers"],
        "rate_mbit": ADVISE.get("link_mbit")
        or (VALUES["testbed"]["nodes"]["link_mbit"] if ADVISE_NODES else ADVISE_LINK),
        "latency_ms": ADVISE["latency_ms"],
    }
}
ADVISE_CHECKED = f"{workflow.basedir}/workflow/studies/advise/checked.csv"
ADVISE_TARGETS, ADVISE_CHECKS = [], []
if named("timing") and not grid.streams(VALUES):
    ADVISE_TARGETS += [f"{RESULTS}/advice.csv", f"{FIGURE_FOLDER}/advice.svg"]
if studied("advise") and not grid.streams(VALUES):
    ADVISE_CHECKS += [
        f"{RESULTS}/advice_check.csv",
        f"{FIGURE_FOLDER}/advice_check.svg",
    ]
STUDY_TARGETS += ADVISE_TARGETS + ADVISE_CHECKS
# The calibrations of the check: of its models, and without a server, since it is timed without a server.
ADVISE_CHECK_FOLDERS = sorted(
    {
        *(folder for run in studied("advise") for folder in layers_of(run)),
        *(
            folder
            for run in usual(named("timing"))
            if timed(run).training.model in ADVISE["models"]
            and timed(run).topology == ALL_GATHER
            for folder in exchanges_of(run)
        ),
    }
)


# The input of scripts that predict: calibrations and, for other nodes, the slowdown of this machine.
ADVISE_INPUT = {
    "calibration": calibrated("run.json", [layers_of, exchanges_of], among=usual),
    "rates": (
        sorted({rate_file(timed(run)) for run in usual(named("timing"))})
        if ADVISE_NODES
        else []
    ),
    "checked": ADVISE_CHECKED,
}


rule advise:
    input:
        ADVISE_TARGETS,


rule advise_check:
    input:
        ADVISE_CHECKS,


use rule artefact as advice_table with:
    input:
        **ADVISE_INPUT,
    output:
        **table_files("advice", "Advice"),
    params:
        **script_params("workflow/studies/advise/table.py") | ADVISE_ASKED,
    log:
        f"{RESULTS}/logs/advice.log",


use rule artefact as advice_figure with:
    input:
        **ADVISE_INPUT,
    output:
        **figure_files("advice", "Advice"),
    params:
        **script_params("workflow/studies/advise/figure.py") | ADVISE_ASKED,
    log:
        f"{RESULTS}/logs/figure-advice.log",


use rule artefact as advice_check_table with:
    input:
        timing=tables("timing", "iterations.csv", studied("advise")),
        calibration=[f"{folder}/run.json" for folder in ADVISE_CHECK_FOLDERS],
    output:
        **table_files("advice_check", "Advice against measurement"),
    params:
        **script_params("workflow/studies/advise/check.py"),
    log:
        f"{RESULTS}/logs/advice_check.log",


use rule artefact as advice_check_figure with:
    input:
        table=f"{RESULTS}/advice_check.csv",
    output:
        **figure_files("advice_check", "Advice against measurement"),
    params:
        **script_params("workflow/studies/advise/check_figure.py"),
    log:
        f"{RESULTS}/logs/figure-advice_check.log",
