"""A search's scores as an Optuna journal, for optuna-dashboard."""

from __future__ import annotations

from collections.abc import Sequence

from autoseg.search.folder import Folder
from autoseg.search.proposers import as_trials
from autoseg.search.records import Scored
from autoseg.search.settings import Search
from autoseg.search.space import search_space


def write_journal(folder: Folder, search: Search, history: Sequence[Scored]) -> None:
    """Write what is scored so far to `journal.log`, which optuna-dashboard can open at any time.

    Trials that are missing in it are appended. If its trials differ from those of the search, it is written again.
    Nothing else reads it.
    """
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock

    path = folder.path / "journal.log"
    scored = as_trials(search_space(search), history)

    # Only one process writes the journal, so a lock that is 3 s old was left by a killed one. Optuna would wait 30 s.
    lock = JournalFileSymlinkLock(str(path), grace_period=3)

    def append() -> None:
        view = optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(path), lock_obj=lock)),
            study_name=search.name,
            direction="maximize",
            load_if_exists=True,
            sampler=optuna.samplers.RandomSampler(),
        )
        there = view.get_trials(deepcopy=False)
        if any(a.params != b.params for a, b in zip(there, scored, strict=False)):
            raise ValueError("a journal of other trials")
        view.add_trials(scored[len(there) :])

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        if path.exists() and not path.read_bytes().endswith(b"\n"):
            path.unlink()  # its last line was cut off by a kill
        try:
            append()
        except (ValueError, KeyError, optuna.exceptions.OptunaError):
            path.unlink(missing_ok=True)
            append()
    finally:
        optuna.logging.set_verbosity(verbosity)
