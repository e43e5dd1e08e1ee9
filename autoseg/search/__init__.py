"""Searches: which curves to try next, what the trials scored, and which surrogate that selects.

Knows losses by their parameters only, and the small JSON files of a search. Does not know torch, data sets, or how a
trial is trained.
"""
