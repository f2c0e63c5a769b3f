# The timing grid with a parameter server.
if studied("servers"):
    STUDY_TARGETS.append(f"{RESULTS}/servers.csv")


use rule collect_timing as servers_timing with:
    input:
        timing=tables("timing", "iterations.csv", studied("servers")),
    output:
        f"{RESULTS}/servers_timing.csv",
    log:
        f"{RESULTS}/logs/servers_timing.log",


rule servers_table:
    input:
        timing=f"{RESULTS}/servers_timing.csv",
    output:
        **table_files("servers", "Parameter server"),
    params:
        **script_params("workflow/studies/servers/table.py"),
    log:
        f"{RESULTS}/logs/servers.log",
    conda:
        ENVIRONMENT
    message:
        "table of servers"
    script:
        "table.py"
