# Runs: a network retrained with a loss on the full training set, and its scores on the validation images.
# `exec`: a signal (a preemption, the end of a job's time) must reach the training, not die in a shell around it.

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
        # As a resource: another number of GPUs alone is no reason to train again.
        processes=lambda w: P.retrainings[P.runs[w.run].retraining].processes,
        gpu=lambda w: gpu() * P.retrainings[P.runs[w.run].retraining].processes,
        cpus_per_task=lambda w: (P.threads + P.workers) * P.retrainings[P.runs[w.run].retraining].processes,
        # Not past a day, where many partitions end: a training that is cut off goes on from its checkpoint.
        runtime=lambda w, attempt: min(720 * attempt, 1440),
        mem_mb=lambda w, attempt: 24000 * attempt,
    params:
        loss=lambda w: P.runs[w.run].loss,
        searched=searched,
        task=run_task,
        weights=lambda w: weights_of(P.retrainings[P.runs[w.run].retraining].weights),
        # With `input` among its arguments: Snakemake then takes it as following from that, and no reason to run again.
        checkpoints=lambda w, input: P.run_training(P.runs[w.run].retraining, 0).checkpoint_every,
        source=lambda w: P.retrainings[P.runs[w.run].retraining].source,
        version=TRAINING_VERSION,
    shell:
        "exec {AUTOSEG} train --processes {resources.processes} --loss {params.loss:q} {params.searched} --out {OUT}/runs/{wildcards.run} "
        "--source {params.source} --quiet {params.task} {MACHINE} --set checkpoint_every={params.checkpoints} 2> {log:q}"


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
        cpus_per_task=P.threads + P.workers,
        runtime=lambda w, attempt: 120 * attempt,
        mem_mb=lambda w, attempt: 16000 * attempt,
    params:
        task=run_task,
        window=window,
        version=TRAINING_VERSION,
    shell:
        "exec {AUTOSEG} evaluate {OUT}/runs/{wildcards.run} --out {output:q} --name {wildcards.run:q} {params.window} "
        "{params.task} {MACHINE} 2> {log:q}"
