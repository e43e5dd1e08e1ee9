"""What the Snakefile uses of Snakemake beside its documented interface: one function for each, with the reason.

Nothing is imported from Snakemake; each function is given the Snakefile's `workflow`, a job of it, or a module.
tests/test_snakemake_private.py runs them all in the installed Snakemake, and fails when it has changed. What is changed
in the SLURM executor is in `autoseg.pipeline.patience`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

from autoseg.errors import InputError, shown
from autoseg.files import read_settings


def read_configs_first(types: Any) -> None:
    """Read every config file strictly before Snakemake does; one that is wrong ends it with a sentence and code 2.

    Snakemake reads them before the Snakefile, ends in tracebacks of its own, and runs code in a config that asks for
    it. The workflow's default profile (`profiles/default`) is read earlier still, and calls this.
    """
    load = types.load_configfile

    @wraps(load)
    def strictly(path: Path) -> Any:
        try:
            content = read_settings(path)
            if not isinstance(content, dict):
                raise InputError(f"found {type(content).__name__}", where=path, expected="keys and values")
            if "__use_yte__" in content:
                raise InputError("'__use_yte__' lets a config run code", where=path, cure="write its values out")
        except InputError as error:
            print(f"autoseg: {shown(str(error))}", file=sys.stderr)
            sys.exit(2)
        return load(path)

    types.load_configfile = strictly


def given_configfiles(workflow: Any) -> list[str]:
    """Return the config files of the command line or the profile.

    Snakemake merges a `configfile:` of the Snakefile with them key by key: the demo's must be left out where one is
    given. `config` itself does not tell the two cases apart.
    """
    return [str(path) for path in workflow.overwrite_configfiles]


def given_keys(workflow: Any) -> dict[str, Any]:
    """Return the keys of `--config` on the command line: the report shows commands that make the same results."""
    return dict(workflow.config_settings.config)


def before_jobs(workflow: Any, act: Callable[[bool], None]) -> None:
    """Call a function right before Snakemake plans the jobs that it will run; True: it is a dry run.

    The Snakefile is also read for `--report`, `--summary`, `--lint`, `--dag`, `--unlock` and more, which run no job. No
    setting tells them apart while the Snakefile is read. Only Snakemake's `execute` runs jobs, and it plans them first.
    """
    execute = workflow.execute

    @wraps(execute)
    def executed(*, executor_plugin: Any, **keywords: Any) -> Any:
        if executor_plugin.name != "touch":  # --touch takes all files as they are
            act(executor_plugin.name == "dryrun")
        return execute(executor_plugin=executor_plugin, **keywords)

    workflow.execute = executed


def keep_times_in_order(dag: Any) -> None:
    """Give an output that looks older than an input the input's time, in the class of Snakemake's DAG.

    This happens where the clocks of nodes differ. Snakemake would call the job failed, delete its output, and end.
    """
    check = dag.check_output_mtime

    @wraps(check)
    async def checked(self: Any, job: Any, outputs: Sequence[str]) -> None:
        newest = max((os.stat(path).st_mtime_ns for path in job.input if os.path.exists(path)), default=0)
        for path in outputs:
            if os.path.isfile(path) and os.stat(path).st_mtime_ns < newest:
                os.utime(path, ns=(newest, newest))
        await check(self, job, outputs)

    dag.check_output_mtime = checked


def is_locked(folder: str) -> bool:
    """Return whether another Snakemake in this working directory, alive or killed, has locked files of a folder."""
    locks = Path(".snakemake/locks").glob("*.lock")
    return any(line.startswith(f"{folder}/") for lock in locks for line in lock.read_text().splitlines())


def jobs_to_run(workflow: Any, rule: str | None = None) -> list[Any]:
    """Return the jobs that will run, of one rule or of all: only what they need is checked before the first."""
    return [job for job in workflow.dag.needrun_jobs() if rule is None or job.rule.name == rule]


def is_planned(workflow: Any, rule: str) -> bool:
    """Return whether a rule has a job in the DAG: after a part, such as one table, the report is as old as before."""
    return any(job.rule.name == rule for job in workflow.dag.jobs)


def resources(job: Any, attempt: int, *keys: str) -> list[Any]:
    """Return what a job asks for in its nth attempt, for each key; None: nothing.

    Resources are functions of the attempt, and Snakemake computes only those of the present attempt. The check before
    the start needs those of the last attempt; so the number is changed for a moment.
    """
    present, job.attempt = job.attempt, attempt
    try:
        return [job.resources.get(key) for key in keys]
    finally:
        job.attempt = present


def attempts(workflow: Any) -> int:
    """Return how often a job is tried."""
    return 1 + (workflow.execution_settings.retries or 0)


def slurm_status_command(workflow: Any) -> str | None:
    """Return how the SLURM executor asks for the state of jobs; None with any other executor, which has no such key."""
    return getattr(workflow.executor_settings, "status_command", None)


def slurm_run(workflow: Any) -> str | None:
    """Return the name that all jobs of this run have on the cluster; None with any other executor than SLURM's.

    `autoseg resume` finds by it the jobs that a killed run left.
    """
    return getattr(workflow.scheduler._executor, "run_uuid", None)


def is_local(workflow: Any) -> bool:
    """Return whether jobs run on this machine: only an executor that sends them elsewhere has a number of nodes.

    The executor itself is not yet known when the Snakefile is read.
    """
    return workflow.resource_settings.nodes is None


def limit(workflow: Any, resource: str, most: int) -> None:
    """Let the jobs that run on this machine at once use no more of a resource, unless a limit was given.

    `--resources` on the command line does the same, but a limit that the machine knows need not be counted by hand.
    """
    if resource not in workflow.global_resources:
        workflow.register_resource(resource, most)


def is_slurm_batch(arguments: Sequence[str]) -> bool:
    """Return whether this Snakemake, by its arguments, is the one in a job's batch script, which calls `srun`.

    `srun` starts a second Snakemake, which runs the job's command. SLURM sends its signals to that one, and nothing in
    `workflow` tells the two apart.
    """
    return "slurm-jobstep" in arguments
