"""A separable Gaussian blur in Triton; see `similarity.gaussian_blur`."""

# mypy: ignore-errors

import math

import torch
import triton
import triton.language as tl

from autoseg.losses.kernels.similarity import RADIUS, WINDOW

BLOCK = 1024  # places that a program computes


@triton.jit
def _blur_kernel(
    x,
    out,
    total,
    size,
    stride,
    REACH: tl.constexpr,
    W0: tl.constexpr,
    W1: tl.constexpr,
    W2: tl.constexpr,
    W3: tl.constexpr,
    W4: tl.constexpr,
    W5: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    place = (i // stride) % size
    blurred = tl.load(x + i, mask=i < total, other=0.0) * W5
    for k in tl.static_range(REACH):
        weight = W0 if k == 0 else W1 if k == 1 else W2 if k == 2 else W3 if k == 3 else W4
        apart = REACH - k
        before = tl.load(x + i - apart * stride, mask=(i < total) & (place >= apart), other=0.0)
        after = tl.load(x + i + apart * stride, mask=(i < total) & (place + apart < size), other=0.0)
        blurred += weight * (before + after)
    tl.store(out + i, blurred, mask=i < total)


def gaussian_blur(x):
    """Return contiguous planes (N, C, H, W), or volumes, blurred along all axes but the first two."""
    weights = {f"W{k}": WINDOW[k] for k in range(RADIUS + 1)}
    for axis in range(x.ndim - 1, 1, -1):
        size, stride = x.shape[axis], math.prod(x.shape[axis + 1 :])
        out = torch.empty_like(x)
        if x.numel():
            grid = (triton.cdiv(x.numel(), BLOCK),)
            _blur_kernel[grid](x, out, x.numel(), size, stride, REACH=RADIUS, **weights, BLOCK=BLOCK)
        x = out
    return x
