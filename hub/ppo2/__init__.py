"""PPO2, the search of Auto Seg-Loss, for OptunaHub."""

from .sampler import PPO2Sampler

__all__ = ["PPO2Sampler"]
