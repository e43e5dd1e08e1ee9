"""The lower envelope of parabolas in Triton: distances to the nearest edge. See `device_labels.nearest`."""

# mypy: ignore-errors

import torch
import triton
import triton.language as tl

BLOCK = 128  # places that a program computes
STEP = 16  # parabolas that it looks at together


@triton.jit
def _envelope_kernel(square, out, size, BLOCK: tl.constexpr, STEP: tl.constexpr):
    line = tl.program_id(0).to(tl.int64) * size
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    least = tl.full((BLOCK,), float("inf"), tl.float32)
    for first in range(0, size, STEP):
        j = first + tl.arange(0, STEP)
        start = tl.load(square + line + j, mask=j < size, other=float("inf"))
        apart = (i[:, None] - j[None, :]).to(tl.float32)
        least = tl.minimum(least, tl.min(start[None, :] + apart * apart, axis=1))
    tl.store(out + line + i, least, mask=i < size)


def lower_envelope(square):
    """Return the least square[j] + (i - j)^2 over j, for each i of the last axis."""
    out, size = torch.empty_like(square), square.shape[-1]
    if out.numel():
        grid = (square.numel() // size, triton.cdiv(size, BLOCK))
        _envelope_kernel[grid](square, out, size, BLOCK=BLOCK, STEP=STEP)
    return out
