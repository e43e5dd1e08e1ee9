# Tunings: a loss trained on the proxy task with many learning rates, as a rival of a search with as many trainings.
# `exec`: see train.smk.


rule tune:
    input:
        lambda w: INPUTS.tune(w.tuning),
    output:
        PATHS.tuning_chunk("{tuning}", "{chunk}", "{parts}"),
    log:
        PATHS.log("tunings/{tuning}/trials-{chunk}-of-{parts}"),
    benchmark:
        PATHS.benchmark("tunings/{tuning}/trials-{chunk}-of-{parts}")
    conda:
        ENV
    threads: P.threads
    resources:
        gpu=GPU,
        gpu_shares=GPU,
        cpus_per_task=P.threads + P.loaders,
        runtime=lambda w, attempt: 240 * attempt,
        mem_mb=lambda w, attempt: 16000 * attempt,
    params:
        tuning=lambda w: ARGUMENTS.tune(w.tuning),
        # With `input` as an argument it is no reason to run again: it changes no result.
        machine=lambda w, input: ARGUMENTS.machine_of_trials,
        version=TRAINING_VERSION,
    shell:
        "exec autoseg tune {params.tuning[arguments]} --chunk {wildcards.chunk}/{wildcards.parts} --out {output:q} "
        "--quiet {params.machine} 2> {log:q}"


rule tuned:
    input:
        lambda w: INPUTS.tuned(w.tuning),
    output:
        PATHS.tuned("{tuning}"),
    log:
        PATHS.log("tunings/{tuning}/tuned"),
    benchmark:
        PATHS.benchmark("tunings/{tuning}/tuned")
    localrule: True
    conda:
        ENV
    params:
        arguments=lambda w: ARGUMENTS.tuned(w.tuning),
    shell:
        "autoseg tune {params.arguments} --select --out {output:q} 2> {log:q}"
