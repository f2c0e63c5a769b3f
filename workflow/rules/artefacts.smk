# Runs -> tidy tables -> the paper's tables and figures.
# The tidy tables. A configuration can have no timing runs.
TIDY = {kind: f"{RESULTS}/{kind}.csv" for kind in ("accuracy", "timing") if named(kind)}
# The table "answer" needs a timing run over all-gather of a method other than uncompressed.
ANSWERED = any(
    member.variant != "none" and not member.topology.servers
    for spec in CONFIG.runs.values()
    if spec.kind == "timing"
    for member in spec.members.values()
)
# The models of text have one more table.
OF_TEXT = any(figure.value == "test_perplexity" for figure in DRAWN.values())
TARGETS += expand(
    f"{RESULTS}/{{table}}.{{kind}}",
    table=[
        "table1",
        *(["table2", "baselines"] if "timing" in TIDY else []),
        *(["answer"] if ANSWERED else []),
        *(["perplexity"] if OF_TEXT else []),
        "claims",
    ],
    kind=("csv", "md", "tex"),
)
TARGETS += expand(
    f"{FIGURE_FOLDER}/{{figure}}.{{kind}}", figure=DRAWN, kind=("svg", "png")
)


# Long accuracy runs, for models that train too few epochs on this machine.
KEPT_ACCURACY = kept_files("reference-long-training/**/accuracy.csv")
with open(f"{workflow.basedir}/config/long_training.yaml", encoding="utf-8") as file:
    KEPT_MODELS = yaml.safe_load(file)["models"]


# What the rules of tables and figures share. They inherit from it; their parameters name the script.
rule artefact:
    log:
        f"{RESULTS}/logs/artefact.log",
    conda:
        ENVIRONMENT
    message:
        "{rule}"
    script:
        f"{workflow.basedir}/{{params.script}}"


use rule artefact as collect with:
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


# What the studies of timing runs share; they inherit from it.
use rule artefact as collect_timing with:
    params:
        **script_params("workflow/scripts/collect_timing.py"),
    log:
        f"{RESULTS}/logs/collect_timing.log",


use rule artefact as table1 with:
    input:
        accuracy=f"{RESULTS}/accuracy.csv",
        kept=KEPT_ACCURACY,
    output:
        **table_files("table1", "Table 1", "Tables"),
    params:
        **script_params("workflow/scripts/table1.py"),
    log:
        f"{RESULTS}/logs/table1.log",


use rule artefact as perplexity with:
    input:
        accuracy=f"{RESULTS}/accuracy.csv",
    output:
        **table_files("perplexity", "Perplexity", "Tables"),
    params:
        **script_params("workflow/scripts/perplexity.py"),
    log:
        f"{RESULTS}/logs/perplexity.log",


# The accuracy runs that are finished. They are not inputs, so that Snakemake starts no run for this rule.
use rule artefact as collect_finished with:
    output:
        f"{RESULTS}/so_far.tidy.csv",
    params:
        **script_params("workflow/scripts/collect_finished.py")
        | {"runs": specs_of(None, finished("points.csv"))},
        finished=finished("points.csv"),
        # They differ if a run was made again.
        checksums=[crc32(Path(file).read_bytes()) for file in finished("points.csv")],
    log:
        f"{RESULTS}/logs/collect_finished.log",


use rule table1 as so_far with:
    input:
        accuracy=rules.collect_finished.output[0],
        kept=[],
    output:
        **table_files("so_far", "Table 1 so far", "Tables"),
    log:
        f"{RESULTS}/logs/so_far.log",


# Sessions of other days and machines, over which Table 2 shows the range of the speed-ups. Their links keep the ratio of
# computation to communication of the default nodes at the paper's batch. Tidy tables have no columns for these settings
# of theirs.
OF_SESSIONS = {"threads": 1, "wire": "indices", "bucket_bytes": 2**23}
OF_SESSIONS |= {"planner": "paper", "plan_cost": "amortised"}
KEPT_TIMING = (
    [
        *kept_files("reference-again/*timing.csv*"),
        *kept_files("reference-long-training/stall/timing.csv*"),
        *kept_files("reference/*timing.csv*"),
    ]
    if VALUES["testbed"]["nodes"] == configuration.defaults("testbed", "nodes")
    and OF_SESSIONS.items() <= VALUES.items()
    and all(
        PAPERS_BATCH.get(model) in (None, nodes_batch(model))
        for model in VALUES["models"]
    )
    else []
)


use rule artefact as table2 with:
    input:
        timing=f"{RESULTS}/timing.csv",
        kept=KEPT_TIMING,
    output:
        **table_files("table2", "Table 2", "Tables"),
    params:
        **script_params("workflow/scripts/table2.py"),
    log:
        f"{RESULTS}/logs/table2.log",


# The break-even rates are predicted from the calibrations, which are made if a planner needs them.
PREDICTED = VALUES["planner"] not in FIXED and not grid.streams(VALUES)


use rule artefact as answer with:
    input:
        **TIDY,
        kept=KEPT_ACCURACY,
        sessions=KEPT_TIMING,
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


use rule artefact as baselines with:
    input:
        timing=tables("timing", "iterations.csv", named("timing")),
    output:
        **table_files("baselines", "Baselines", "Tables"),
    params:
        **script_params("workflow/scripts/baselines.py"),
    log:
        f"{RESULTS}/logs/baselines.log",


# Statements about merging layers need the table of the study of planners: the own one, if no run is needed for it, or
# the kept one.
PLANNERS_TIMED = (
    [f"{RESULTS}/planners_timing.csv"]
    if measured("planners")
    else kept_files("reference-studies/planners_timing.csv")
)


use rule artefact as claims with:
    input:
        **TIDY,
        planners=PLANNERS_TIMED,
        kept=KEPT_ACCURACY,
        methods=kept_files("reference-methods/methods_accuracy.csv"),
    output:
        **table_files("claims", "Claims", "Tables"),
    params:
        **script_params("workflow/scripts/claims.py"),
    log:
        f"{RESULTS}/logs/claims.log",


# The curves of every model. For the paper's models they are figures 5 to 10.
use rule artefact as curve with:
    input:
        tidy=f"{RESULTS}/accuracy.csv",
        kept=KEPT_ACCURACY,
    output:
        **figure_files("{figure}", figure_label, "Figures"),
    params:
        **figure_params("workflow/scripts/curve.py"),
        recipe=lambda wildcards: recipe(DRAWN[wildcards.figure].model),
        kept_recipe=lambda wildcards: recipe(DRAWN[wildcards.figure].model, KEPT_MODELS),
    wildcard_constraints:
        figure="|".join(name for name in DRAWN if DRAWN[name].value != "breakdown"),
    log:
        f"{RESULTS}/logs/{{figure}}.log",
    message:
        "{wildcards.figure}"


# The breakdown of every model. For the paper's models they are figures 11 to 13. The study of methods inherits from it.
use rule artefact as breakdown with:
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
    message:
        "{wildcards.figure}"
