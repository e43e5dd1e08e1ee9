"""Metrics: each written once as a formula, counted fast on label maps.

Knows label maps, classes and void. Does not know losses, data sets or files.
"""
