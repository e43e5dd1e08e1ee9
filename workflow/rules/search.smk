# Searches: ask(t) -> trials(t, chunk) -> ask(t + 1) -> ... -> rescore -> select. The numbers of steps, trials and chunks
# are known beforehand, so the whole DAG is, too; those of a search of some `hours` are known once a trial was timed.
# A search's settings are arguments of its commands, and proposals.json holds those that its trials need: as a file of
# their own, a change of one setting would run every step again.
# `exec`: see train.smk. `priority`: the steps of a search wait for one another, and other jobs fill the gaps.


checkpoint time_trial:
    input:
        lambda w: INPUTS.trials[w.search],
    output:
        PATHS.timing("{search}"),
    log:
        PATHS.log("searches/{search}/timing"),
    benchmark:
        PATHS.benchmark("searches/{search}/timing")
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
        task=lambda w: ARGUMENTS.timing[w.search],
        # With `input` as an argument they are no reason to time a trial again.
        settings=lambda w, input: ARGUMENTS.search[w.search],
        hours=lambda w, input: P.searches[w.search].hours,
        size=lambda w, input: P.searches[w.search].trials_per_job,
        machine=lambda w, input: ARGUMENTS.machine_of_trials,
    shell:
        "exec autoseg plan --settings {params.settings:q} --hours {params.hours} "
        "--trials-per-job {params.size} --out {output:q} {params.task[arguments]} {params.machine} > {log:q} 2>&1"


rule ask:
    input:
        lambda w: timed(w.search) and INPUTS.ask(w.search, int(w.step)),
    output:
        PATHS.proposals("{search}", "step-{step}"),
    log:
        PATHS.log("searches/{search}/ask-{step}"),
    benchmark:
        PATHS.benchmark("searches/{search}/ask-{step}")
    priority: 10
    localrule: True
    conda:
        ENV
    params:
        folder=lambda w: PATHS.search(w.search),
        # Only the settings that change proposals: with more steps, for example, finished steps do not run again.
        decisive=lambda w: ARGUMENTS.ask[w.search],
        # With `input` as an argument it is no reason to run again.
        settings=lambda w, input: ARGUMENTS.search[w.search],
        version=SEARCH_VERSION,
    shell:
        "autoseg ask {params.folder:q} --step {wildcards.step} --settings {params.settings:q} 2> {log:q}"


rule trials:
    input:
        PATHS.proposals("{search}", "{step}"),
        known(lambda w: INPUTS.trials[w.search]),
    output:
        PATHS.chunk("{search}", "{step}", "{chunk}", "{parts}"),
    log:
        PATHS.log("searches/{search}/trials-{step}-{chunk}-of-{parts}"),
    benchmark:
        PATHS.benchmark("searches/{search}/trials-{step}-{chunk}-of-{parts}")
    wildcard_constraints:
        step=r"step-\d{3}|rescore",
    priority: 10
    conda:
        ENV
    threads: P.threads
    resources:
        gpu=GPU,
        gpu_shares=GPU,
        cpus_per_task=P.threads + P.loaders,
        runtime=known(lambda w, attempt: 240 * attempt),
        mem_mb=known(lambda w, attempt: 16000 * attempt),
    params:
        # One function for arguments and weights, and `known`: planning thousands of these jobs takes a tenth less.
        search=known(lambda w: ARGUMENTS.trials[w.search]),
        # With `input` as an argument it is no reason to run again: it changes no result.
        machine=known(lambda w, input: ARGUMENTS.machine_of_trials),
        version=TRAINING_VERSION,
    shell:
        "exec autoseg trials {params.search[arguments]} --step {wildcards.step} "
        "--chunk {wildcards.chunk}/{wildcards.parts} --out {output:q} --quiet {params.machine} 2> {log:q}"


rule rescore:
    input:
        lambda w: timed(w.search) and INPUTS.rescore(w.search),
    output:
        PATHS.proposals("{search}", "rescore"),
    log:
        PATHS.log("searches/{search}/rescore"),
    benchmark:
        PATHS.benchmark("searches/{search}/rescore")
    priority: 10
    localrule: True
    conda:
        ENV
    params:
        folder=lambda w: PATHS.search(w.search),
        settings=lambda w: ARGUMENTS.search[w.search],
        version=SEARCH_VERSION,
    shell:
        "autoseg rescore {params.folder:q} --settings {params.settings:q} 2> {log:q}"


rule select:
    input:
        lambda w: timed(w.search) and INPUTS.select(w.search),
    output:
        PATHS.surrogate("{search}"),
    log:
        PATHS.log("searches/{search}/select"),
    benchmark:
        PATHS.benchmark("searches/{search}/select")
    priority: 10
    localrule: True
    conda:
        ENV
    params:
        folder=lambda w: PATHS.search(w.search),
        settings=lambda w: ARGUMENTS.search[w.search],
        version=SEARCH_VERSION,
    shell:
        "autoseg select {params.folder:q} --settings {params.settings:q} --out {output:q} > {log:q} 2>&1"
