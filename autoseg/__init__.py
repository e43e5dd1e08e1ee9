"""autoseg: search a loss function for the segmentation metric you care about.

Importing this package imports neither torch nor optuna; each module brings only what its layer needs.
"""

__version__ = "0.1.0"
