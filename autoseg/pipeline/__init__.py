"""The pipeline: its config, what follows from it (jobs, paths, arguments, costs), and what happens around a run.

Knows the settings of every room before it. Does not train, and loads neither torch nor optuna to read a config.
"""
