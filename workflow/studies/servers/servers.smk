# The timing grid with a parameter server, and the speed-up with it against the rate of the links.
SWEPT = [run for run in studied("servers") if SPECS[f"timing/{run}"].cluster.rates_mbit]
# From the calibrations over the fastest links the other rates are predicted.
FASTEST = max(VALUES["studies"]["servers"]["rates_mbit"], default=0)
AT_FASTEST = [run for run in SWEPT if FASTEST in timed(run).cluster.rates_mbit]

if studied("servers"):
    STUDY_TARGETS.append(f"{RESULTS}/servers.csv")
if SWEPT:
    STUDY_TARGETS.append(f"{FIGURE_FOLDER}/servers.svg")


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


rule servers_figure:
    input:
        table=f"{RESULTS}/servers.csv",
        layers=sorted({f"{layers_of(run)}/run.json" for run in AT_FASTEST}),
        exchanges=[f"{exchanges_of(run)}/run.json" for run in AT_FASTEST],
    output:
        **figure_files("servers", "Speed-up with a server"),
    params:
        **script_params("workflow/studies/servers/figure.py"),
        rates=VALUES["studies"]["servers"]["rates_mbit"],
    log:
        f"{RESULTS}/logs/figure-servers.log",
    conda:
        ENVIRONMENT
    message:
        "figure of servers"
    script:
        "figure.py"
