"""A noisy hill in two dimensions: the mean that PPO2 ends with, beside the luckiest trial."""

from __future__ import annotations

import random

import optuna
import optunahub


def objective(trial: optuna.Trial) -> float:
    """Return the height of the hill at a point, with noise."""
    x, y = trial.suggest_float("x", 0, 1), trial.suggest_float("y", -5, 5)
    return 1 - (x - 0.7) ** 2 - (y / 10) ** 2 + random.Random(trial.number).gauss(0, 0.05)


if __name__ == "__main__":
    module = optunahub.load_module(package="samplers/ppo2")
    space = {
        "x": optuna.distributions.FloatDistribution(0, 1),
        "y": optuna.distributions.FloatDistribution(-5, 5),
    }
    sampler = module.PPO2Sampler(space, trials_per_step=8, steps=10)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.optimize(objective, n_trials=8 * 10)
    print("answer:       ", sampler.best_mean(study).mean)
    print("luckiest trial:", study.best_params)
