"""Versions of the algorithms: raised when the same input would give other bytes, so that older results are made again.

They are part of the fingerprints of results and of the parameters of rules. Other changes of the code re-run nothing.
"""

PREPARE_VERSION = 3  # index and caches
SEARCH_VERSION = 3  # proposals and answers
TRAINING_VERSION = 2  # weights and scores
