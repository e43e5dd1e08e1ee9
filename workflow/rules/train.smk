# Runs: a network retrained with a loss on the full training set, and its scores on the validation images.

RUN = f"{OUT}/runs/{{run}}"


rule train:
    input:
        run_data,
        surrogates,
    output:
        # The weights beside it carry the training's fingerprint and are no output: Snakemake would delete them before
        # a job that may find them finished.
        f"{RUN}/run.json",
    log:
        f"{OUT}/logs/runs/{{run}}/train.log",
    benchmark:
        f"{OUT}/logs/runs/{{run}}/train.tsv"
    conda:
        ENV
    threads: P.threads
    resources:
        gpu=lambda w: gpu() * P.retrainings[P.runs[w.run].retraining].processes,
        runtime=lambda w, attempt: 1440 * attempt,
        mem_mb=lambda w, attempt: 24000 * attempt,
    params:
        loss=lambda w: P.runs[w.run].loss,
        searched=searched,
        task=run_task,
        source=lambda w: P.retrainings[P.runs[w.run].retraining].source,
        version=TRAINING_VERSION,
    shell:
        "{AUTOSEG} train --loss {params.loss:q} {params.searched} --out {OUT}/runs/{wildcards.run} --source {params.source} --quiet "
        "{params.task} --set workers={P.workers} 2> {log:q}"


rule evaluate:
    input:
        f"{RUN}/run.json",
        run_data,
    output:
        f"{RUN}/scores.json",
    log:
        f"{OUT}/logs/runs/{{run}}/evaluate.log",
    benchmark:
        f"{OUT}/logs/runs/{{run}}/evaluate.tsv"
    conda:
        ENV
    threads: P.threads
    resources:
        gpu=gpu(),
        runtime=lambda w, attempt: 120 * attempt,
        mem_mb=lambda w, attempt: 16000 * attempt,
    params:
        task=run_task,
        window=window,
        version=TRAINING_VERSION,
    shell:
        "{AUTOSEG} evaluate {OUT}/runs/{wildcards.run} --out {output:q} --name {wildcards.run:q} {params.window} "
        "{params.task} --set workers={P.workers} 2> {log:q}"
