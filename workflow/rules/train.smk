# Runs: a network retrained with a loss on the full training set, and its scores on the validation images.
# `exec` replaces the shell by the command, so that a signal (a preemption, the end of a job's time) reaches the training;
# a shell would not pass it on.


rule train:
    input:
        lambda w: INPUTS.train(w.run),
    output:
        # The weights beside it are not declared: Snakemake deletes the outputs of a rule before it runs again, and the
        # job could not find them finished.
        PATHS.trained("{run}"),
    log:
        PATHS.log("runs/{run}/train"),
    benchmark:
        PATHS.benchmark("runs/{run}/train")
    conda:
        ENV
    threads: P.threads
    resources:
        # A resource, not a parameter: another number of GPUs is no reason to train again.
        processes=lambda w: P.retrainings[P.runs[w.run].retraining].processes,
        gpu=lambda w: GPU * P.retrainings[P.runs[w.run].retraining].processes,
        gpu_shares=lambda w: WHOLE_GPU * P.retrainings[P.runs[w.run].retraining].processes,
        cpus_per_task=lambda w: (P.threads + P.loaders) * P.retrainings[P.runs[w.run].retraining].processes,
        # At most a day, the limit of many partitions: a training that is stopped continues from its checkpoint.
        runtime=lambda w, attempt: min(720 * attempt, 1440),
        mem_mb=lambda w, attempt: 24000 * attempt,
    params:
        folder=lambda w: PATHS.run(w.run),
        arguments=lambda w: ARGUMENTS.train(w.run),
        weights=lambda w: content_of(P.retrainings[P.runs[w.run].retraining]),
        # With `input` as an argument these are no reason to train again: they change no result.
        machine=lambda w, input: ARGUMENTS.machine,
        checkpoints=lambda w, input: P.run_training(P.runs[w.run].retraining, 0).checkpoint_every,
        version=TRAINING_VERSION,
    shell:
        "exec autoseg train --processes {resources.processes} --out {params.folder:q} --quiet {params.arguments} "
        "{params.machine} --set checkpoint_every={params.checkpoints} 2> {log:q}"


rule evaluate:
    input:
        lambda w: PATHS.trained(P.runs[w.run].trained.name),
        lambda w: INPUTS.evaluate(w.run),
    output:
        PATHS.scores("{run}"),
    log:
        PATHS.log("runs/{run}/evaluate"),
    benchmark:
        PATHS.benchmark("runs/{run}/evaluate")
    conda:
        ENV
    threads: P.threads
    resources:
        gpu=GPU,
        gpu_shares=WHOLE_GPU,
        cpus_per_task=P.threads + P.loaders,
        runtime=lambda w, attempt: 120 * attempt,
        mem_mb=lambda w, attempt: 16000 * attempt,
    params:
        folder=lambda w: PATHS.run(P.runs[w.run].trained.name),
        arguments=lambda w: ARGUMENTS.evaluate(w.run),
        machine=lambda w, input: ARGUMENTS.machine,
        version=TRAINING_VERSION,
    shell:
        "exec autoseg evaluate {params.folder:q} --out {output:q} --name {wildcards.run:q} {params.arguments} "
        "{params.machine} 2> {log:q}"
