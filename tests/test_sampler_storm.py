"""PPO2Sampler in several processes on one storage, some of which are killed, fail or return NaN."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import optuna
import pytest
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import TrialState

from autoseg.search.frozen import DRAW, POLICY, attributes_of, set_attribute
from autoseg.search.ppo2 import PRESETS, Policy, draw
from autoseg.search.sampler import PPO2Sampler
from tests.test_sampler import SPACE, assert_policies_are_rederived, suggest

FORK = multiprocessing.get_context("fork")  # a worker then starts at once


def open_storage(kind: str, folder: Path) -> BaseStorage:
    if kind == "sqlite":
        return RDBStorage(f"sqlite:///{folder}/study.db", engine_kwargs={"connect_args": {"timeout": 60}})
    path = str(folder / "journal.log")
    # A short grace period: a worker killed while it holds the lock would otherwise hold up the others for 30 seconds.
    return JournalStorage(JournalFileBackend(path, lock_obj=JournalFileOpenLock(path, grace_period=4)))


def make(preset: str) -> PPO2Sampler:
    return PPO2Sampler.preset(preset, SPACE, trials_per_step=6, steps=10, seed=3)


def work(kind: str, folder: Path, preset: str, enough: int, luck: int) -> None:
    rng = random.Random(luck)
    study = optuna.load_study(study_name="storm", storage=open_storage(kind, folder), sampler=make(preset))

    def objective(trial: optuna.Trial) -> float:
        value = suggest(trial)
        time.sleep(rng.random() / 200)
        fate = rng.random()
        if fate < 0.04:
            os.kill(os.getpid(), signal.SIGKILL)
        if fate < 0.12:
            raise RuntimeError("a failed trial")
        return float("nan") if fate < 0.2 else value

    while completed(study) < enough:
        study.optimize(objective, n_trials=3, catch=RuntimeError)


def completed(study: optuna.Study) -> int:
    return len(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)))


def storm(
    kind: str, folder: Path, preset: str, enough: int, meanwhile: Callable[[list], None] = lambda workers: None
) -> None:
    study = optuna.create_study(study_name="storm", storage=open_storage(kind, folder), direction="maximize")
    workers: list = [None] * 4
    luck = 0
    while completed(study) < enough:
        for index, worker in enumerate(workers):
            if worker is None or not worker.is_alive():
                luck += 1
                workers[index] = FORK.Process(target=work, args=(kind, folder, preset, enough, luck))
                workers[index].start()
        meanwhile(workers)
        time.sleep(0.05)
    for worker in workers:
        worker.join()

    states = {state: len(study.get_trials(states=(state,))) for state in TrialState}
    assert states[TrialState.FAIL] > 0
    assert states[TrialState.RUNNING] > 0  # those who were killed
    study.sampler = make(preset)
    study.ask(SPACE)  # freezes the last full step
    # Stragglers of a full step count for nothing: at most 3 other workers had a trial running when a step was filled.
    assert assert_policies_are_rederived(study, make(preset)) >= enough // (6 + 3)
    drawn = [
        tuple(t.params.values())
        for t in study.trials
        if len(t.params) == len(SPACE) and not t.system_attrs["ppo2:draw"]["is_mu"]
    ]
    assert len(set(drawn)) == len(drawn)


@pytest.mark.parametrize("kind", ["journal", "sqlite"])
def test_four_processes_with_kills_failures_and_nans_keep_one_consistent_search(kind: str, tmp_path: Path) -> None:
    storm(kind, tmp_path, "release" if kind == "journal" else "default", enough=40)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["journal", "sqlite"])
@pytest.mark.parametrize("preset", PRESETS)
def test_a_long_storm_with_kills_at_any_moment(kind: str, preset: str, tmp_path: Path) -> None:
    rng = random.Random(0)

    def kill(workers: list) -> None:
        if rng.random() < 0.1:
            os.kill(rng.choice(workers).pid, signal.SIGKILL)

    storm(kind, tmp_path, preset, enough=400, meanwhile=kill)


GRPC = """
import socket, sys, threading, time
import optuna
from optuna.storages import GrpcStorageProxy, JournalStorage, run_grpc_proxy_server
from optuna.storages.journal import JournalFileBackend
from tests.test_sampler import SPACE, assert_policies_are_rederived, make, suggest

with socket.socket() as free:
    free.bind(("localhost", 0))
    port = free.getsockname()[1]
backend = JournalStorage(JournalFileBackend(sys.argv[1]))
server = threading.Thread(
    target=run_grpc_proxy_server, args=(backend,), kwargs={"host": "localhost", "port": port}, daemon=True
)
server.start()
proxy = GrpcStorageProxy(host="localhost", port=port)
proxy.wait_server_ready(timeout=60)
study = optuna.create_study(storage=proxy, direction="maximize", sampler=make())
study.optimize(suggest, n_trials=13)
other = optuna.load_study(study_name=study.study_name, storage=GrpcStorageProxy(host="localhost", port=port),
                          sampler=make())
other.optimize(suggest, n_trials=4)
assert assert_policies_are_rederived(other, make()) == 4
memory = optuna.create_study(direction="maximize", sampler=make())
memory.optimize(suggest, n_trials=17)
assert [t.params for t in memory.trials] == [t.params for t in other.trials]
print("equal", flush=True)
"""


def test_a_grpc_proxy_gives_the_same_search(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", GRPC, str(tmp_path / "journal.log")], capture_output=True, text=True, timeout=120
    )
    assert run.stdout.strip() == "equal", run.stderr


def test_processes_that_begin_the_same_step_at_once_take_other_rows_of_its_design():
    """Each has frozen its own record, and none has seen the draws of the others."""
    settings = make("recommended").settings
    design = np.random.default_rng(0).random((6, 2))
    rows = [draw(settings, Policy(np.full(2, 0.5), design=design, begin=n), 0, n).tolist() for n in range(31, 37)]
    assert sorted(rows) == sorted(design.tolist())


def test_two_processes_that_begin_the_same_step_do_not_try_the_same_twice():
    """Both chose the same trials, each of them for the numbers from its own one on."""
    study = optuna.create_study(direction="maximize", sampler=make("recommended"))
    for number in range(6):
        study.tell(study.ask(SPACE), -abs(number - 3))
    first = study.ask(SPACE)  # begins the second step
    key = f"{POLICY}2:{first.number}"
    record = attributes_of(study)[key]
    slower = {**record, "writer": first.number + 1}
    set_attribute(study, f"{POLICY}2:{first.number - 1}", slower)
    second = study.ask(SPACE)
    assert study.trials[second.number].system_attrs[DRAW]["step"] == 2
    assert second.params != first.params
