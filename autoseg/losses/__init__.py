"""Losses: curves inside a metric's formula (surrogates), hand-made losses, and the names of all of them.

Knows metrics and `surrogate.json`. Does not know data sets, searches or networks.
"""
