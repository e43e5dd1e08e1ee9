"""Kernels: the sums of a formula with curves in its operators, and the way back from those sums to the logits.

On a CPU: `region` and `boundary`, with `planes`, and `sigmoid` for multilabel. On a GPU, and wherever compiled:
`device_region`, `device_boundary` and `device_labels`, with `device` and `tables`. `similarity` is SSIM on both. Each
operation of those that is worth it has a function of the same name in a module of Triton kernels (`triton_region`,
...), which is imported on a GPU only. How a score is made of the sums is the formula's business.
"""
