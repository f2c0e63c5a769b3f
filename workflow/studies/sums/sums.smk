# Sums of tensors with blocks of zeros: OmniReduce compared with sums that send all blocks.
if studied("sums"):
    STUDY_TARGETS += [f"{RESULTS}/sums.csv", f"{FIGURE_FOLDER}/sums.svg"]


use rule launch as time_sums with:
    input:
        plan=[],
        rate=[],
        length=[],
    output:
        run_files("sums", "sums.csv"),
    params:
        **run_params("sums"),
    log:
        f"{RESULTS}/logs/sums/{{run}}.log",
    resources:
        **resources_of("sums"),


use rule artefact as sums_table with:
    input:
        tables("sums", "sums.csv", studied("sums")),
    output:
        **table_files("sums", "Block-sparse sums"),
    params:
        **script_params("workflow/studies/sums/table.py"),
    log:
        f"{RESULTS}/logs/sums.log",


use rule artefact as sums_figure with:
    input:
        table=f"{RESULTS}/sums.csv",
    output:
        **figure_files("sums", "Block-sparse sums"),
    params:
        **script_params("workflow/studies/sums/figure.py"),
    log:
        f"{RESULTS}/logs/figure-sums.log",
