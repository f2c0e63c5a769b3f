# The files of the data sets, each made once. Runs wait for them (see data_of).
# CIFAR-10 is downloaded, and checked against pinned checksums.
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
        "python -m dlgs_bench.data.fetch {output:q} > {log:q} 2>&1"


# ImageNet-100 is decoded and resized once, so that training does not wait for it. Its source is not a parameter of the
# rule, since the same files can be in another folder.
checkpoint imagenet100:
    output:
        expand(f"{IMAGENET100}/{{file}}", file=["index.npz", "train.npy", "val.npy"]),
    params:
        target=subpath(output[0], parent=True),
        code=fingerprint.fingerprints(
            [Path(workflow.basedir, "dlgs_bench/data/fetch/imagenet100.py")]
        ),
    log:
        f"{RESULTS}/logs/imagenet100.log",
    threads: ALL_CORES
    conda:
        ENVIRONMENT
    message:
        "copying ImageNet-100, decoded: about 34 GB, some minutes"
    shell:
        f"python -m dlgs_bench.data.fetch {argument(VALUES['data']['imagenet'])} "
        "{params.target:q} {threads} > {log:q} 2>&1"
