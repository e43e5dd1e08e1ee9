# What happens around a run, on one machine or on a cluster: it is noted, its processes are marked, and a cluster that
# lacks what the jobs ask for is told of before the first one is submitted.

from autoseg import resume, slurm

if workflow.is_main_process:
    resume.mark_processes(P.name)
elif "slurm-jobstep" not in sys.argv:
    slurm.pass_on_signals()


def needs(attempts):
    """Return what the jobs ask for, by partition and account: the last attempt's time, and the first one's memory."""
    found = {}
    for job in workflow.dag.needrun_jobs():
        if not job.is_local:
            first, job.attempt = job.attempt, attempts
            asked = {key: job.resources.get(key) for key in ("gpu", "runtime")}
            job.attempt = first
            mem = job.resources.get("mem_mb")  # of the first attempt: few jobs ever need the last one's
            place = [str(job.resources.get(key) or "") for key in ("slurm_partition", "slurm_account")]
            before = found.get(tuple(place), slurm.Need(*place, gpus=0))
            found[tuple(place)] = slurm.Need(
                *place,
                gpus=max(before.gpus, asked["gpu"] or 0),
                minutes=max(before.minutes, asked["runtime"] or 0),
                mem_mb=max(before.mem_mb, mem or 0),
            )
    return found.values()


def check_cluster():
    """Refuse to start on a cluster that lacks what the jobs ask for."""
    status = getattr(workflow.executor_settings, "status_command", None)  # only the SLURM executor has one
    if status is None:
        return
    attempts = 1 + (workflow.execution_settings.retries or 0)
    found = [problem for need in needs(attempts) for problem in slurm.check(need, status)]
    if found:
        sys.exit("autoseg: " + " ".join(str(problem) for problem in dict.fromkeys(found)))
    for remark in slurm.check_folder(os.getcwd()):
        print(f"autoseg: {remark}", file=sys.stderr)


def note_start():
    """Note how this run is started, for `autoseg resume`."""
    resume.note_start(P.name, sys.argv[1:], getattr(workflow.scheduler._executor, "run_uuid", None))
