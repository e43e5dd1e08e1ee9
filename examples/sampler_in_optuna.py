"""PPO2 in a plain Optuna study of a noisy function, beside Optuna's own TPE: which answer is nearer to the truth?

    python examples/sampler_in_optuna.py                  # seconds

Ten parameters, and noise as large as the differences between good points. PPO2 answers with a mean, TPE with its best
trial. The study is kept in a file: run it again, or in a second terminal, and it goes on.
"""

from __future__ import annotations

import argparse
import random

import optuna
from optuna.distributions import FloatDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from autoseg.search.sampler import PPO2Sampler

SPACE = {f"x{k}": FloatDistribution(0, 1) for k in range(10)}
TOP = dict(zip(SPACE, (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.7, 0.6, 0.5), strict=True))


def height(point: dict[str, float]) -> float:
    """Return the true score of a point; the best is 1."""
    return 1 - sum((point[name] - TOP[name]) ** 2 for name in SPACE)


def objective(trial: optuna.Trial) -> float:
    """Return the score as it is measured."""
    point = {name: trial.suggest_float(name, 0, 1) for name in SPACE}
    return height(point) + random.Random(trial.number).gauss(0, 0.05)


def main() -> None:
    """Search with both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--storage", default="ppo2-example.log", help="the study's file")
    args = parser.parse_args()

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    trials = 16 * args.steps
    sampler = PPO2Sampler.preset("recommended", SPACE, trials_per_step=16, steps=args.steps)
    samplers: dict[str, BaseSampler] = {"ppo2": sampler, "tpe": TPESampler(seed=0)}
    for name, used in samplers.items():
        study = optuna.create_study(
            direction="maximize",
            sampler=used,
            study_name=name,
            storage=JournalStorage(JournalFileBackend(args.storage)),
            load_if_exists=True,
        )
        study.optimize(objective, n_trials=max(0, trials - len(study.trials)))
        answer = sampler.answer(study) if name == "ppo2" else study.best_params
        print(f"{name}: {len(study.trials)} trials, true score of the answer {height(answer):.3f} (best: 1)")


if __name__ == "__main__":
    main()
