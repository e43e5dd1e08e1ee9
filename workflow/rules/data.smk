# Data sets: read and checked once, packed, and split into training and hold-out images.


def prepare_options(dataset, size):
    """Return the options of `autoseg prepare`, without the number of workers, which changes nothing."""
    own = {key: value for key, value in P.datasets[dataset].options.items() if key != "workers"}
    return flags({**own, "proxy_size": size})


rule prepare_dataset:
    output:
        index=f"{OUT}/data/{{dataset}}/index.json",
        statistics=f"{OUT}/data/{{dataset}}/statistics.json",
    log:
        f"{OUT}/logs/prepare/{{dataset}}.log",
    benchmark:
        f"{OUT}/logs/prepare/{{dataset}}.tsv"
    conda:
        ENV
    resources:
        runtime=lambda w, attempt: 120 * attempt,
        mem_mb=lambda w, attempt: 4000 * attempt,
    params:
        kind=lambda w: P.datasets[w.dataset].kind,
        options=lambda w: prepare_options(w.dataset, P.datasets[w.dataset].proxy_size),
        out=lambda w, output: os.path.dirname(output.index),
        version=PREPARE_VERSION,
    shell:
        "{AUTOSEG} prepare {params.kind} {params.options} --out {params.out:q} 2> {log:q}"


rule cache_dataset:
    # One for each size that a proxy task needs, so that another proxy leaves the searches on the first alone.
    input:
        f"{OUT}/data/{{dataset}}/index.json",
    output:
        f"{OUT}/data/{{dataset}}/cache-{{side}}.json",
    log:
        f"{OUT}/logs/prepare/{{dataset}}-{{side}}.log",
    benchmark:
        f"{OUT}/logs/prepare/{{dataset}}-{{side}}.tsv"
    conda:
        ENV
    resources:
        runtime=lambda w, attempt: 120 * attempt,
        mem_mb=lambda w, attempt: 4000 * attempt,
    params:
        kind=lambda w: P.datasets[w.dataset].kind,
        options=lambda w: prepare_options(w.dataset, int(w.side) // 2),
        out=lambda w, output: os.path.dirname(output[0]),
        version=PREPARE_VERSION,
    shell:
        "{AUTOSEG} prepare {params.kind} {params.options} --out {params.out:q} 2> {log:q}"


rule split_dataset:
    input:
        f"{OUT}/data/{{dataset}}/index.json",
    output:
        f"{OUT}/data/{{dataset}}/split.json",
    log:
        f"{OUT}/logs/split/{{dataset}}.log",
    benchmark:
        f"{OUT}/logs/split/{{dataset}}.tsv"
    localrule: True
    conda:
        ENV
    params:
        options=lambda w: flags({"hold_out": P.datasets[w.dataset].hold_out, "seed": P.datasets[w.dataset].split_seed}),
        data=lambda w, output: os.path.dirname(output[0]),
    shell:
        "{AUTOSEG} split {params.data:q} {params.options} --out {output:q} 2> {log:q}"
