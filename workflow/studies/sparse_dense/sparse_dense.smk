# Test accuracy of alternating sparse and dense steps, at equal bytes.
if studied("sparse_dense"):
    STUDY_TARGETS += [
        f"{RESULTS}/sparse_dense.csv",
        f"{FIGURE_FOLDER}/sparse_dense.svg",
    ]


use rule artefact as sparse_dense_collect with:
    input:
        tables("accuracy", "points.csv", studied("sparse_dense")),
    output:
        f"{RESULTS}/sparse_dense_points.csv",
    params:
        **script_params("workflow/studies/sparse_dense/collect.py"),
    log:
        f"{RESULTS}/logs/sparse_dense_collect.log",


use rule artefact as sparse_dense_table with:
    input:
        points=f"{RESULTS}/sparse_dense_points.csv",
    output:
        **table_files("sparse_dense", "Sparse and dense steps"),
    params:
        **script_params("workflow/studies/sparse_dense/table.py"),
    log:
        f"{RESULTS}/logs/sparse_dense.log",


use rule artefact as sparse_dense_figure with:
    input:
        points=f"{RESULTS}/sparse_dense_points.csv",
    output:
        **figure_files("sparse_dense", "Sparse and dense steps"),
    params:
        **script_params("workflow/studies/sparse_dense/figure.py"),
    log:
        f"{RESULTS}/logs/figure-sparse_dense.log",
