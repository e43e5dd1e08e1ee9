"""Tables, figures and the report page, from score files; and the numbers that the paper printed.

Knows the files of searches and runs. Does not know how they were made; only galleries load torch.
"""
