# All methods in one table and three figures: snakemake methods.
METHODS = VALUES["studies"]["methods"]
METHODS_RUNS = {kind: of_kind("methods", kind) for kind in ("accuracy", "timing")}
METHODS_LARGE = [run for run in METHODS_RUNS["timing"] if "-methods-rates" not in run]
METHODS_GIVEN = METHODS["variants"] | VALUES["variants"]
METHODS_PARAMS = {
    key: METHODS[key]
    for key in (
        "baseline",
        "megabytes",
        "target",
        "test_samples",
        "final_test_samples",
    )
}
METHODS_PARAMS |= {
    "variants": {
        spec.variant: variants.variant(
            spec.variant, METHODS_GIVEN.get(spec.variant, {})
        ).title
        for spec in CONFIG.studies["methods"].values()
        if spec.kind == "accuracy"
    },
    "model": sorted({timed(run).training.model for run in METHODS_LARGE}),
    "value": "breakdown",
}
METHODS_CAPTION = "One iteration of every method. " + fingerprint.docstring(
    "workflow/scripts/breakdown.py"
)
STUDY_TARGETS.append(f"{RESULTS}/methods.csv")
STUDY_TARGETS += expand(
    f"{FIGURE_FOLDER}/methods-{{name}}.svg", name=("bytes", "ranking", "breakdown")
)


use rule artefact as methods_collect with:
    input:
        accuracy=tables("accuracy", "points.csv", METHODS_RUNS["accuracy"]),
        timing=tables("timing", "iterations.csv", METHODS_LARGE),
        rates=tables(
            "timing",
            "iterations.csv",
            [run for run in METHODS_RUNS["timing"] if run not in METHODS_LARGE],
        ),
    output:
        accuracy=f"{RESULTS}/methods_accuracy.csv",
        timing=f"{RESULTS}/methods_timing.csv",
        rates=f"{RESULTS}/methods_rates_timing.csv",
    params:
        **script_params("workflow/studies/methods/collect.py") | METHODS_PARAMS,
    log:
        f"{RESULTS}/logs/methods_collect.log",


use rule artefact as methods_table with:
    input:
        accuracy=f"{RESULTS}/methods_accuracy.csv",
        timing=f"{RESULTS}/methods_timing.csv",
        rates=f"{RESULTS}/methods_rates_timing.csv",
    output:
        **table_files("methods", "Methods"),
    params:
        **script_params("workflow/studies/methods/table.py") | METHODS_PARAMS,
    log:
        f"{RESULTS}/logs/methods.log",


use rule artefact as methods_bytes with:
    input:
        accuracy=f"{RESULTS}/methods_accuracy.csv",
        table=f"{RESULTS}/methods.csv",
    output:
        **figure_files("methods-bytes", "Methods: accuracy and bytes"),
    params:
        **script_params("workflow/studies/methods/by_bytes.py") | METHODS_PARAMS,
    log:
        f"{RESULTS}/logs/figure-methods-bytes.log",


use rule artefact as methods_ranking with:
    input:
        accuracy=f"{RESULTS}/methods_accuracy.csv",
        table=f"{RESULTS}/methods.csv",
    output:
        **figure_files("methods-ranking", "Methods: time to an accuracy"),
    params:
        **script_params("workflow/studies/methods/ranking.py") | METHODS_PARAMS,
    log:
        f"{RESULTS}/logs/figure-methods-ranking.log",


use rule breakdown as methods_breakdown with:
    input:
        tidy=f"{RESULTS}/methods_timing.csv",
    output:
        **figure_files("methods-breakdown", "Methods: one iteration"),
    params:
        **script_params("workflow/scripts/breakdown.py", METHODS_CAPTION)
        | METHODS_PARAMS
        | {"fastest_first": True},
    log:
        f"{RESULTS}/logs/figure-methods-breakdown.log",
    message:
        "figure of the parts of an iteration of every method"
