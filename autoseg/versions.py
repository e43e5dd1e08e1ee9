"""Versions of the algorithms: raised when the same input would give other bytes, so that what is stale is made again.

They are part of the fingerprints of results and of the pipeline's parameters; no comment fix re-runs a search.
"""

PREPARE_VERSION = 2  # index and caches
SEARCH_VERSION = 1  # proposals and answers
TRAINING_VERSION = 1  # weights and scores
