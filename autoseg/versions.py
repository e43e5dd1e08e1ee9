"""Versions of the algorithms: raised when the same input would give other bytes, so that what is stale is made again.

They are part of the fingerprints of results and of the pipeline's parameters; no comment fix re-runs a search.
"""

PREPARE_VERSION = 3  # index and caches
SEARCH_VERSION = 3  # proposals and answers
TRAINING_VERSION = 2  # weights and scores
