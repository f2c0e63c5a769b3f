# The effect of error feedback on accuracy, published and measured here.
if studied("published"):
    STUDY_TARGETS += [f"{RESULTS}/published.csv", f"{FIGURE_FOLDER}/published.svg"]


use rule artefact as published_table with:
    input:
        points=tables("accuracy", "points.csv", studied("published")),
        published=f"{workflow.basedir}/workflow/studies/published/published.csv",
    output:
        **table_files("published", "Published and ours"),
    params:
        **script_params("workflow/studies/published/table.py"),
        test_samples=VALUES["studies"]["published"]["test_samples"],
    log:
        f"{RESULTS}/logs/published.log",


use rule artefact as published_figure with:
    input:
        table=f"{RESULTS}/published.csv",
        points=tables("accuracy", "points.csv", studied("published")),
    output:
        **figure_files("published", "Published and ours"),
    params:
        **script_params("workflow/studies/published/figure.py"),
    log:
        f"{RESULTS}/logs/figure-published.log",
