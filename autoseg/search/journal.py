"""A search's scores as an Optuna study: a journal for optuna-dashboard, or a study in memory."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from autoseg.search.folder import Folder
from autoseg.search.proposers import as_trials
from autoseg.search.records import Scored
from autoseg.search.settings import Search
from autoseg.search.space import search_space

if TYPE_CHECKING:
    from optuna import Study


def study_of(search: Search, history: Sequence[Scored]) -> Study:
    """Return what is scored so far as a study in memory; a trial's user attributes have the scores of all metrics."""
    with _quiet():
        study = _open(search)
        _add(study, search, history)
    return study


def _open(search: Search, **storage: Any) -> Study:
    import optuna

    # A sampler that is never asked; the default one would be loaded for nothing.
    sampler = optuna.samplers.RandomSampler()
    return optuna.create_study(study_name=search.name, direction="maximize", sampler=sampler, **storage)


def _add(study: Study, search: Search, history: Sequence[Scored]) -> None:
    """Add the trials that the study has not got, what it maximises, and each step's mean score and mean."""
    space = search_space(search)
    scored, there = as_trials(space, history), study.get_trials(deepcopy=False)
    if any(a.params != b.params or a.user_attrs != b.user_attrs for a, b in zip(there, scored, strict=False)):
        raise ValueError("a journal of other trials")
    if study.metric_names != [search.metric]:
        study.set_metric_names([search.metric])
    study.add_trials(scored[len(there) :])
    for step in history:
        about: dict[str, Any] = {"mean score": step.average, "best score": max(step.scores)}
        if step.proposals.mu is not None:
            about["mean"] = dict(zip(space.names, step.proposals.mu, strict=True))
        key = f"step {step.proposals.step}"
        if study.user_attrs.get(key) != about:
            study.set_user_attr(key, about)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Optuna from telling of every study and trial, and of what is experimental."""
    import optuna

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(verbosity)


def write_journal(folder: Folder, search: Search, history: Sequence[Scored]) -> None:
    """Write what is scored so far to `journal.log`, which optuna-dashboard can open at any time.

    Trials that are missing in it are appended. If its trials differ from those of the search, it is written again.
    Nothing else reads it.
    """
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock

    path = folder.path / "journal.log"

    # Only one process writes the journal, so a lock that is 3 s old was left by a killed one. Optuna would wait 30 s.
    lock = JournalFileSymlinkLock(str(path), grace_period=3)

    def append() -> None:
        storage = JournalStorage(JournalFileBackend(str(path), lock_obj=lock))
        _add(_open(search, storage=storage, load_if_exists=True), search, history)

    with _quiet():
        if path.exists() and not path.read_bytes().endswith(b"\n"):
            path.unlink()  # its last line was cut off by a kill
        try:
            append()
        except (ValueError, KeyError, optuna.exceptions.OptunaError):
            path.unlink(missing_ok=True)
            append()
