"""Kernels: the sums of a formula with curves in its operators, and the way back from those sums to the logits.

On a CPU: `region` and `boundary`, with `planes`. On a GPU, and wherever a loss is compiled: `device_region` and
`device_boundary`, whose operations are Triton's (`triton_region`, `triton_boundary`) or torch's. How a score is made of
the sums is the formula's business.
"""
