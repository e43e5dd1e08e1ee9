# Runs: a network retrained with a loss on the full training set, and its scores on the validation images.
# `exec`: a signal (a preemption, the end of a job's time) must reach the training, not die in a shell around it.

RUN = f"{OUT}/runs/{{run}}"


rule train:
    input:
        lambda w: f"{OUT}/data/{run_plan(w)[0]}/split.json",
        surrogates,
    output:
        run=f"{RUN}/run.json",
        weights=f"{RUN}/weights.safetensors",
    log:
        f"{OUT}/logs/runs/{{run}}/train.log",
    benchmark:
        f"{OUT}/logs/runs/{{run}}/train.tsv"
    conda:
        ENV
    threads: P.threads
    resources:
        # As a resource: another number of GPUs alone is no reason to train again.
        processes=lambda w: P.retrainings[run_plan(w)[1]].processes,
        gpu=lambda w: gpu() * P.retrainings[run_plan(w)[1]].processes,
        cpus_per_task=lambda w: (P.threads + P.workers) * P.retrainings[run_plan(w)[1]].processes,
        # Not past a day, where many partitions end: a training that is cut off goes on from its checkpoint.
        runtime=lambda w, attempt: min(720 * attempt, 1440),
        mem_mb=lambda w, attempt: 24000 * attempt,
    params:
        folder=lambda w: f"{OUT}/runs/{w.run}",
        loss=lambda w: run_plan(w)[2],
        searched=searched,
        task=run_task,
        source=lambda w: P.retrainings[run_plan(w)[1]].source,
        workers=f"--set workers={P.workers}",
    shell:
        "exec autoseg train --processes {resources.processes} --loss {params.loss:q} {params.searched} --out {params.folder:q} "
        "--source {params.source} --quiet {params.task} {params.workers} 2> {log:q}"


rule evaluate:
    input:
        run=f"{RUN}/run.json",
        weights=f"{RUN}/weights.safetensors",
        split=lambda w: f"{OUT}/data/{run_plan(w)[0]}/split.json",
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
        folder=lambda w: f"{OUT}/runs/{w.run}",
        task=run_task,
        window=lambda w: flags({"window": list(P.retrainings[run_plan(w)[1]].window or []) or None}),
        workers=f"--set workers={P.workers}",
    shell:
        "exec autoseg evaluate {params.folder:q} --out {output:q} --name {wildcards.run:q} {params.window} "
        "{params.task} {params.workers} 2> {log:q}"
