# Runs -> tidy tables -> the paper's tables and figures.
# The tidy tables that they are made from: there may be no timing runs.
TIDY = {kind: f"{RESULTS}/{kind}.csv" for kind in ("accuracy", "timing") if named(kind)}
# Does it pay? A question about all-gather, and about a method besides uncompressed.
ANSWERED = any(
    member.variant != "none" and not member.topology.servers
    for spec in CONFIG.runs.values()
    if spec.kind == "timing"
    for member in spec.members.values()
)
TARGETS += expand(
    f"{RESULTS}/{{table}}.{{kind}}",
    table=[
        "table1",
        *(["table2", "baselines"] if "timing" in TIDY else []),
        *(["answer"] if ANSWERED else []),
        "claims",
    ],
    kind=("csv", "md", "tex"),
)
TARGETS += expand(
    f"{FIGURE_FOLDER}/{{figure}}.{{kind}}", figure=DRAWN, kind=("svg", "png")
)


# Long accuracy runs, for models that were trained too briefly here.
KEPT_ACCURACY = sorted(
    map(
        str,
        Path(workflow.basedir).glob("results/reference-long-training/**/accuracy.csv"),
    )
)


rule collect:
    input:
        accuracy=tables("accuracy", "points.csv", named("accuracy")),
        timing=tables("timing", "iterations.csv", named("timing")),
    output:
        **TIDY,
        provenance=f"{RESULTS}/provenance.json",
    params:
        **script_params("workflow/scripts/collect.py"),
    log:
        f"{RESULTS}/logs/collect.log",
    conda:
        ENVIRONMENT
    message:
        "collecting the runs"
    script:
        "../scripts/collect.py"


# What the studies of timing runs share; they inherit from it.
rule collect_timing:
    params:
        **script_params("workflow/scripts/collect_timing.py"),
    log:
        f"{RESULTS}/logs/collect_timing.log",
    conda:
        ENVIRONMENT
    message:
        "collecting the runs: {rule}"
    script:
        f"{workflow.basedir}/workflow/scripts/collect_timing.py"


rule table1:
    input:
        accuracy=f"{RESULTS}/accuracy.csv",
        kept=KEPT_ACCURACY,
    output:
        **table_files("table1", "Table 1", "Tables"),
    params:
        **script_params("workflow/scripts/table1.py"),
    log:
        f"{RESULTS}/logs/table1.log",
    conda:
        ENVIRONMENT
    message:
        "table 1"
    script:
        "../scripts/table1.py"


# Of the accuracy runs that are there already: no input, since nothing is to be run for it.
rule collect_finished:
    output:
        f"{RESULTS}/so_far.tidy.csv",
    params:
        **script_params("workflow/scripts/collect_finished.py")
        | {"runs": asked_of(None, finished("points.csv"))},
        finished=finished("points.csv"),
    log:
        f"{RESULTS}/logs/collect_finished.log",
    conda:
        ENVIRONMENT
    message:
        "collecting the accuracy runs that are finished"
    script:
        "../scripts/collect_finished.py"


use rule table1 as so_far with:
    input:
        accuracy=rules.collect_finished.output[0],
        kept=[],
    output:
        **table_files("so_far", "Table 1 so far", "Tables"),
    log:
        f"{RESULTS}/logs/so_far.log",
    message:
        "table 1 of what is finished"


rule table2:
    input:
        timing=f"{RESULTS}/timing.csv",
    output:
        **table_files("table2", "Table 2", "Tables"),
    params:
        **script_params("workflow/scripts/table2.py"),
    log:
        f"{RESULTS}/logs/table2.log",
    conda:
        ENVIRONMENT
    message:
        "table 2"
    script:
        "../scripts/table2.py"


# The break-even rates are the time model's, which knows what was calibrated for plans.
PREDICTED = VALUES["planner"] not in FIXED and not grid.streams(VALUES)


rule answer:
    input:
        **TIDY,
        kept=KEPT_ACCURACY,
        calibration=(
            calibrated("run.json", [layers_of, exchanges_of]) if PREDICTED else []
        ),
        rates=(
            sorted({rate_file(timed(run)) for run in named("timing")})
            if PREDICTED
            and VALUES["network"] == "testbed"
            and VALUES["testbed"]["rate_mbit"] == grid.PROPORTIONAL
            else []
        ),
    output:
        **table_files("answer", "Does it pay?", "Tables"),
    params:
        **script_params("workflow/scripts/answer.py"),
    log:
        f"{RESULTS}/logs/answer.log",
    conda:
        ENVIRONMENT
    message:
        "table of answers"
    script:
        "../scripts/answer.py"


rule baselines:
    input:
        timing=tables("timing", "iterations.csv", named("timing")),
    output:
        **table_files("baselines", "Baselines", "Tables"),
    params:
        **script_params("workflow/scripts/baselines.py"),
    log:
        f"{RESULTS}/logs/baselines.log",
    conda:
        ENVIRONMENT
    message:
        "table of baselines"
    script:
        "../scripts/baselines.py"


# Statements about merging layers are judged once the study of planners has run.
PLANNERS_TIMED = [
    file for file in [f"{RESULTS}/planners_timing.csv"] if Path(file).exists()
]


rule claims:
    input:
        **TIDY,
        planners=PLANNERS_TIMED,
        kept=KEPT_ACCURACY,
    output:
        **table_files("claims", "Claims", "Tables"),
    params:
        **script_params("workflow/scripts/claims.py"),
    log:
        f"{RESULTS}/logs/claims.log",
    conda:
        ENVIRONMENT
    message:
        "claims"
    script:
        "../scripts/claims.py"


# The figures of every model; figures 5 to 10 for the paper's.
rule curve:
    input:
        tidy=f"{RESULTS}/accuracy.csv",
        kept=KEPT_ACCURACY,
    output:
        **figure_files("{figure}", figure_label, "Figures"),
    params:
        **figure_params("workflow/scripts/curve.py"),
    wildcard_constraints:
        figure="|".join(name for name in DRAWN if DRAWN[name].value != "breakdown"),
    log:
        f"{RESULTS}/logs/{{figure}}.log",
    conda:
        ENVIRONMENT
    message:
        "{wildcards.figure}"
    script:
        "../scripts/curve.py"


# Figures 11 to 13 for the paper's models; the study of methods inherits from it.
rule breakdown:
    input:
        tidy=f"{RESULTS}/timing.csv",
    output:
        **figure_files("{figure}", figure_label, "Figures"),
    params:
        **figure_params("workflow/scripts/breakdown.py"),
    wildcard_constraints:
        figure="|".join(name for name in DRAWN if DRAWN[name].value == "breakdown"),
    log:
        f"{RESULTS}/logs/{{figure}}.log",
    conda:
        ENVIRONMENT
    message:
        "{wildcards.figure}"
    script:
        f"{workflow.basedir}/workflow/scripts/breakdown.py"
