# Timing runs with a parameter server over links of several rates.
# The other rates are predicted from the calibrations over the fastest links.
FASTEST = [
    run
    for run in studied("servers")
    if max(VALUES["studies"]["servers"]["rates_mbit"]) in timed(run).cluster.rates_mbit
]

if studied("servers"):
    STUDY_TARGETS += [f"{RESULTS}/servers.csv", f"{FIGURE_FOLDER}/servers.svg"]


use rule collect_timing as servers_timing with:
    input:
        timing=tables("timing", "iterations.csv", studied("servers")),
    output:
        f"{RESULTS}/servers_timing.csv",
    log:
        f"{RESULTS}/logs/servers_timing.log",


use rule artefact as servers_table with:
    input:
        timing=f"{RESULTS}/servers_timing.csv",
    output:
        **table_files("servers", "Parameter server"),
    params:
        **script_params("workflow/studies/servers/table.py"),
    log:
        f"{RESULTS}/logs/servers.log",


use rule artefact as servers_figure with:
    input:
        table=f"{RESULTS}/servers.csv",
        layers=sorted({f"{f}/run.json" for run in FASTEST for f in layers_of(run)}),
        exchanges=[f"{f}/run.json" for run in FASTEST for f in exchanges_of(run)],
    output:
        **figure_files("servers", "Speed-up with a server"),
    params:
        **script_params("workflow/studies/servers/figure.py"),
    log:
        f"{RESULTS}/logs/figure-servers.log",
