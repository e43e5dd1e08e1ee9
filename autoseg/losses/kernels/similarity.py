"""The structural similarity (SSIM) of probabilities and target, and its gradient, by separable blurs.

On a CPU a few planes at a time, so that they stay in the cache. On a GPU, and in compiled code, all planes at once:
no host sync, no shape that depends on data. With Triton, a blur is two launches of the kernel of `triton_blur`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from autoseg.losses.kernels import device
from autoseg.losses.kernels.device import has_triton, in_triton
from autoseg.losses.kernels.planes import chunks, softmax_gradient

RADIUS, SIGMA = 5, 1.5
C1, C2 = 0.01**2, 0.03**2

_BELL = [math.exp(-(k**2) / (2 * SIGMA**2)) for k in range(-RADIUS, RADIUS + 1)]
WINDOW = tuple(x / math.fsum(_BELL) for x in _BELL)
"""The weights of a row of the Gaussian window of 11x11."""


class Dissimilarity(torch.autograd.Function):
    """The sum of 1 - SSIM over the valid pixels of all planes; the gradient is computed with it, if it is asked for.

    Args:
        logits: (N, C, H, W) or (N, C, D, H, W), float32 or float64. In a volume the window is a cube.
        labels: (N, ...) in int64, C for void. Void pixels are 0 in both maps, and not valid.
        weights: how much each class counts, (C,); None: all alike.
        whole: all planes at once.
        with_gradient: whether a gradient will be asked for.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, labels: Tensor, weights: Tensor | None, whole: bool, with_gradient: bool
    ) -> Tensor:
        """Return the sum."""
        classes, ones = logits.shape[1], (1,) * (logits.ndim - 2)
        valid = (labels != classes).to(logits.dtype).unsqueeze(1)
        p = logits.softmax(1).mul_(valid)
        numbers = torch.arange(classes, device=labels.device).view(-1, *ones)
        weights = None if weights is None else weights.to(p.dtype).view(-1, *ones)
        if whole:
            total, by_p = _dissimilarity(p, labels.unsqueeze(1) == numbers, valid, weights, with_gradient)
        else:
            total, by_p = p.new_zeros((), dtype=torch.float64), torch.empty_like(p) if with_gradient else None
            for i, some in chunks(p):
                one, shares = slice(i, i + 1), None if weights is None else weights[some]
                y = labels[one].unsqueeze(1) == numbers[some]
                part, by_part = _dissimilarity(p[one, some], y, valid[one], shares, with_gradient)
                total += part
                if by_p is not None and by_part is not None:
                    by_p[one, some] = by_part
        if by_p is not None:
            ctx.save_for_backward(softmax_gradient(by_p.mul_(p), p, whole))
        return total.to(p.dtype)

    @staticmethod
    def backward(ctx: Any, by_sum: Tensor) -> tuple[Tensor, None, None, None, None]:
        """Return the gradient by the logits."""
        (by_logits,) = ctx.saved_tensors
        return by_logits * by_sum, None, None, None, None


def _dissimilarity(
    p: Tensor, y: Tensor, valid: Tensor, weights: Tensor | None, with_gradient: bool
) -> tuple[Tensor, Tensor | None]:
    """Return the sum of 1 - SSIM of planes (N, C, H, W) or (N, C, D, H, W) over valid pixels, and its derivative by p.

    With blurred maps m = E p, n = E y, a = E (p^2 + y), b = E p y (y^2 = y), SSIM is s = (2mn + C1) (2 (b - mn) + C2) /
    ((m^2 + n^2 + C1) (a - m^2 - n^2 + C2)). Memory is used again as soon as it may be.
    """
    m, n = blur(p), blur(y.to(p.dtype))
    a, b = blur(p.square().add_(y)), blur(torch.where(y, p, 0.0))
    upper1 = m * n
    upper2 = b.sub_(upper1).mul_(2).add_(C2)
    upper1.mul_(2).add_(C1)
    lower1 = (m * m).addcmul_(n, n)
    lower2 = a.sub_(lower1).add_(C2).reciprocal_()
    lower1.add_(C1).reciprocal_()
    shares = valid if weights is None else valid * weights
    s = (upper1 * upper2).mul_(lower1).mul_(lower2).mul_(shares)
    planes = p.shape[1] if weights is None else weights.sum(dtype=torch.float64)
    total = valid.sum(dtype=torch.float64) * planes - s.sum(dtype=torch.float64)
    if not with_gradient:
        return total, None
    # The derivatives of -s, but for a factor of 2 in that by m and b: those have it below.
    by_m = upper2.sub_(upper1).mul_(lower1).mul_(lower2).mul_(shares).mul_(n)
    by_b = upper1.mul_(lower1).mul_(lower2).mul_(shares)
    del n
    by_m.add_(lower1.neg_().add_(lower2).mul_(s).mul_(m))
    del m, lower1
    by_a = lower2.mul_(s)
    del s
    by_p = blur(by_a).mul_(p)
    by_p.sub_(blur(by_m)).sub_(torch.where(y, blur(by_b), 0.0))
    return total, by_p.mul_(2).mul_(valid)


def blur(x: Tensor) -> Tensor:
    """Return planes (N, C, H, W), or volumes, under the Gaussian window; outside there are zeros."""
    if has_triton(x):
        return gaussian_blur(x.contiguous())
    if device.on_gpu(x) and not torch.compiler.is_compiling() and x.ndim == 4:
        return _by_convolution(x)
    return _by_shifts(x)


def _by_shifts(x: Tensor) -> Tensor:
    for dim in range(-1, 1 - x.ndim, -1):  # a compiler makes one loop of each; on a CPU no convolution is as quick
        size = x.shape[dim]
        padded = F.pad(x, (0, 0) * (-1 - dim) + (RADIUS, RADIUS))
        x = padded.narrow(dim, RADIUS, size) * WINDOW[RADIUS]
        for k in range(RADIUS):
            for place in (k, 2 * RADIUS - k):
                x.add_(padded.narrow(dim, place, size), alpha=WINDOW[k])
    return x


def _by_convolution(x: Tensor) -> Tensor:
    # One group for each plane: torch's own kernel for that computes in full precision, cuDNN's in TF32.
    planes = x.shape[-3]
    offsets = torch.arange(-RADIUS, RADIUS + 1, dtype=x.dtype, device=x.device)
    window = torch.exp(-offsets.square() / (2 * SIGMA**2))
    window = (window / window.sum()).expand(planes, 1, 1, -1)
    x = F.conv2d(x, window, padding=(0, RADIUS), groups=planes)
    return F.conv2d(x, window.transpose(2, 3), padding=(RADIUS, 0), groups=planes)


@in_triton("triton_blur", torch.empty_like)
def gaussian_blur(x: Tensor) -> Tensor:
    """Return what `blur` says, as two launches of a Triton kernel."""
    return _by_shifts(x)
