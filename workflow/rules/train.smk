# Runs: a network retrained with a loss on the full training set, and its scores on the validation images.

RUN = f"{OUT}/runs/{{run}}"


def run_plan(w):
    """Return the data set, the retraining, the loss and the seed of a run."""
    return P.runs()[w.run]


def surrogates(w):
    """Return the searched surrogates that a run's loss is made of."""
    return [f"{OUT}/searches/{search}/surrogate.json" for search in searches_of(run_plan(w)[2])]


def searched(w):
    """Return them as arguments."""
    names = searches_of(run_plan(w)[2])
    return " ".join(f"--searched {name}={OUT}/searches/{name}/surrogate.json" for name in dict.fromkeys(names))


def run_task(w):
    """Return the arguments of a run's training."""
    dataset, retraining, _, seed = run_plan(w)
    plan = P.retrainings[retraining]
    settings = P.run_training(retraining, seed)
    return task_arguments(dataset, plan.network, plan.weights, settings, P.datasets[dataset].conventions)


rule train:
    input:
        lambda w: f"{OUT}/data/{run_plan(w)[0]}/split.json",
        surrogates,
    output:
        run=f"{RUN}/run.json",
        weights=f"{RUN}/weights.safetensors",
    params:
        folder=RUN,
        loss=lambda w: run_plan(w)[2],
        searched=searched,
        task=run_task,
        source=lambda w: P.retrainings[run_plan(w)[1]].source,
        workers=f"--set workers={P.workers}",
    log:
        f"{OUT}/logs/runs/{{run}}/train.log",
    benchmark:
        f"{OUT}/logs/runs/{{run}}/train.tsv"
    conda:
        ENV
    threads: P.threads
    resources:
        gpu=lambda w: gpu() * P.retrainings[run_plan(w)[1]].processes,
        runtime=lambda w, attempt: 1440 * attempt,
        mem_mb=lambda w, attempt: 24000 * attempt,
    shell:
        "autoseg train --loss {params.loss:q} {params.searched} --out {params.folder:q} --source {params.source} --quiet "
        "{params.task} {params.workers} 2> {log:q}"


rule evaluate:
    input:
        run=f"{RUN}/run.json",
        weights=f"{RUN}/weights.safetensors",
        split=lambda w: f"{OUT}/data/{run_plan(w)[0]}/split.json",
    output:
        f"{RUN}/scores.json",
    params:
        folder=RUN,
        task=run_task,
        window=lambda w: flags({"window": list(P.retrainings[run_plan(w)[1]].window or []) or None}),
        workers=f"--set workers={P.workers}",
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
    shell:
        "autoseg evaluate {params.folder:q} --out {output:q} --name {wildcards.run:q} {params.window} "
        "{params.task} {params.workers} 2> {log:q}"
