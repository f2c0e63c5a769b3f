# The rate of links at which this machine keeps the proportion of the paper's nodes.
STUDY_TARGETS.append(f"{RESULTS}/dilation.csv")


rule dilation_table:
    input:
        layers=calibrated("run.json"),
        rates=sorted({rate_file(timed(run)) for run in named("timing")}),
    output:
        **table_files("dilation", "Time dilation"),
    params:
        **script_params("workflow/studies/dilation/table.py"),
    log:
        f"{RESULTS}/logs/dilation.log",
    conda:
        ENVIRONMENT
    message:
        "table of dilation"
    script:
        "table.py"
