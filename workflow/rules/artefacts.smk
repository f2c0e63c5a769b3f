# Runs -> tidy tables -> the paper's tables and figures.
rule collect:
    input:
        accuracy=expand(
            f"{RUN_FOLDER}/accuracy/{{run}}/points.csv", run=runs_of("accuracy")
        ),
        timing=expand(
            f"{RUN_FOLDER}/timing/{{run}}/iterations.csv", run=runs_of("timing")
        ),
        code=code_behind("collect.py"),
    output:
        accuracy=f"{RESULTS}/accuracy.csv",
        timing=f"{RESULTS}/timing.csv",
        provenance=f"{RESULTS}/provenance.json",
    log:
        f"{RESULTS}/logs/collect.log",
    conda:
        "../../environment.yml"
    message:
        "collecting the runs"
    script:
        "../scripts/collect.py"


rule table:
    input:
        accuracy=f"{RESULTS}/accuracy.csv",
        timing=f"{RESULTS}/timing.csv",
        code=lambda w: code_behind(f"tables/table{w.n}.py"),
    output:
        csv=f"{RESULTS}/table{{n}}.csv",
        md=f"{RESULTS}/table{{n}}.md",
        html=report(
            f"{RESULTS}/table{{n}}.html",
            caption="../report/artefact.rst",
            category="Tables",
            labels={"artefact": "Table {n}"},
        ),
        tex=f"{RESULTS}/table{{n}}.tex",
    params:
        caption=lambda w: plugins.docstring(f"workflow/scripts/tables/table{w.n}.py"),
    wildcard_constraints:
        n="[12]",
    log:
        f"{RESULTS}/logs/table{{n}}.log",
    conda:
        "../../environment.yml"
    message:
        "table {wildcards.n}"
    script:
        "../scripts/tables/table{wildcards.n}.py"


rule figure:
    input:
        tidy=lambda w: f"{RESULTS}/{'accuracy' if w.n in CURVES else 'timing'}.csv",
        code=lambda w: code_behind(f"figures/figure{w.n}.py"),
    output:
        svg=report(
            f"{FIGURE_FOLDER}/figure{{n}}.svg",
            caption="../report/artefact.rst",
            category="Figures",
            labels={"artefact": "Figure {n}"},
        ),
        png=f"{FIGURE_FOLDER}/figure{{n}}.png",
    params:
        caption=lambda w: plugins.docstring(f"workflow/scripts/figures/figure{w.n}.py"),
    wildcard_constraints:
        n="[0-9]{2}",
    log:
        f"{RESULTS}/logs/figure{{n}}.log",
    conda:
        "../../environment.yml"
    message:
        "figure {wildcards.n}"
    script:
        "../scripts/figures/figure{wildcards.n}.py"
