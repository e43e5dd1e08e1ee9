# Data sets: read and checked once, packed, and split into training and hold-out images.


rule prepare_dataset:
    output:
        PATHS.index("{dataset}"),
    log:
        PATHS.log("prepare/{dataset}"),
    benchmark:
        PATHS.benchmark("prepare/{dataset}")
    conda:
        ENV
    resources:
        runtime=lambda w, attempt: 120 * attempt,
        mem_mb=lambda w, attempt: 4000 * attempt,
    params:
        arguments=lambda w: ARGUMENTS.prepare(w.dataset, P.datasets[w.dataset].proxy_size),
        out=lambda w: PATHS.data(w.dataset),
        version=PREPARE_VERSION,
    shell:
        "autoseg prepare {params.arguments} --out {params.out:q} 2> {log:q}"


rule cache_dataset:
    # One cache for each size that a proxy task needs: a new size does not re-run searches with another one.
    input:
        PATHS.index("{dataset}"),
    output:
        PATHS.cache("{dataset}", "{side}"),
    log:
        PATHS.log("prepare/{dataset}-{side}"),
    benchmark:
        PATHS.benchmark("prepare/{dataset}-{side}")
    conda:
        ENV
    resources:
        runtime=lambda w, attempt: 120 * attempt,
        mem_mb=lambda w, attempt: 4000 * attempt,
    params:
        arguments=lambda w: ARGUMENTS.prepare(w.dataset, crop_of_cache(int(w.side))),
        out=lambda w: PATHS.data(w.dataset),
        version=PREPARE_VERSION,
    shell:
        "autoseg prepare {params.arguments} --out {params.out:q} 2> {log:q}"


rule split_dataset:
    input:
        PATHS.index("{dataset}"),
    output:
        PATHS.split("{dataset}"),
    log:
        PATHS.log("split/{dataset}"),
    benchmark:
        PATHS.benchmark("split/{dataset}")
    localrule: True
    conda:
        ENV
    params:
        arguments=lambda w: ARGUMENTS.split(w.dataset),
        data=lambda w: PATHS.data(w.dataset),
    shell:
        "autoseg split {params.data:q} {params.arguments} --out {output:q} 2> {log:q}"


# The hold-out of searches with a seed of their own: repeats of a search differ by it, too.
use rule split_dataset as split_for_seed with:
    output:
        PATHS.split("{dataset}", "{seed}"),
    log:
        PATHS.log("split/{dataset}-{seed}"),
    benchmark:
        PATHS.benchmark("split/{dataset}-{seed}")
    params:
        arguments=lambda w: ARGUMENTS.split(w.dataset, int(w.seed)),
        data=lambda w: PATHS.data(w.dataset),
