"""Trainings: networks, the training loop, trials of a search, runs, and their scores.

Knows prepared data sets, losses and the files of a search. Does not know Snakemake, tables or the paper.
"""
