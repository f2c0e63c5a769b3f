# CIFAR-10: fetched once, checked against pinned sums. Runs wait for it (see data_of).
checkpoint cifar10:
    output:
        CIFAR10,
    log:
        f"{RESULTS}/logs/cifar10.log",
    conda:
        ENVIRONMENT
    message:
        "fetching CIFAR-10"
    shell:
        "python -m harness.data.fetch {output:q} > {log:q} 2>&1"
