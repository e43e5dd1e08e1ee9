"""The region kernels in Triton: the sums of a linear form, and the gradient by the logits. See `device_region`.

A program works on tiles of all classes x some pixels of an image. The softmax is computed from the logits in registers,
both ways, so that nothing but the logits is read and nothing but their gradient is written. Where a slope would have
fewer than 5 digits, because p is a float32, the gradient of the tile is computed once more in float64.
"""

# mypy: ignore-errors

import torch
import triton
import triton.language as tl

from autoseg.losses.kernels.device import SUMMED, tile
from autoseg.losses.kernels.device_region import empty_sums
from autoseg.losses.kernels.triton_curve import delicate, shaped


@triton.jit
def _softmax(logits, target, pixel, size, classes, void, stride_n, stride_c, stride_p, VOID_SEEN, C, KIND):
    """Return, of a tile: p and 1 - p; where the class is the true one, another one that counts, the likeliest one; the
    labels, and where they are no label; where the logits are.
    """
    c, image = tl.arange(0, C)[:, None], tl.program_id(1).to(tl.int64)
    inside = pixel < size
    label = tl.load(target + image * size + pixel, mask=inside, other=0).to(tl.int64)
    offset = image * stride_n + pixel.to(tl.int64) * stride_p + c.to(tl.int64) * stride_c
    z = tl.load(logits + offset, mask=inside & (c < classes), other=0.0).to(KIND)
    z = tl.where(c < classes, z, float("-inf"))
    most = tl.max(z, axis=0)[None, :]
    top = tl.min(tl.where(z == most, c, C), axis=0)[None, :] == c  # the first, if several are equal
    e = tl.exp(z - most)
    below = tl.sum(tl.where(top, 0.0, e), axis=0)[None, :]
    p = e / (1 + below)
    rest = tl.where(top, below / (1 + below), 1 - p)
    is_void = label == void
    known = inside & (label >= 0) & (label < classes) & ~is_void
    mine = known & (label == c)
    counts = known
    if VOID_SEEN:
        counts = known | (inside & is_void)
    other = counts & ~mine & (c < classes)
    return p, rest, mine, other, top, tl.where(known, label, 0), inside & ~is_void & ~known, offset


@triton.jit
def _sums_kernel(
    logits,
    target,
    tables,
    out,
    size,
    classes,
    void,
    stride_n,
    stride_c,
    stride_p,
    OTHERS: tl.constexpr,
    LABEL: tl.constexpr,
    PIECES: tl.constexpr,
    TABLE: tl.constexpr,
    VOID_SEEN: tl.constexpr,
    TILES: tl.constexpr,
    WIDTH: tl.constexpr,
    C: tl.constexpr,
    TERMS: tl.constexpr,
    BLOCK: tl.constexpr,
    KIND: tl.constexpr,
):
    term = tl.arange(0, TERMS)[None, :]
    of_others, of_label = tl.zeros((C, TERMS), KIND), tl.zeros((C, TERMS), KIND)
    for step in range(TILES):
        pixel = ((tl.program_id(0) * TILES + step) * BLOCK + tl.arange(0, BLOCK))[None, :]
        p, rest, mine, other, _, _, bad, _ = _softmax(
            logits, target, pixel, size, classes, void, stride_n, stride_c, stride_p, VOID_SEEN, C, KIND
        )
        poison = tl.where(tl.max(bad.to(tl.int32)) > 0, float("nan"), 0.0)
        of_label += tl.where(term == 0, tl.sum(mine.to(KIND), axis=1)[:, None] + poison, 0.0)
        of_others += tl.where(term == 0, tl.sum(other.to(KIND), axis=1)[:, None], 0.0)
        of_label += tl.where(term == 1, tl.sum(tl.where(mine, p, 0.0), axis=1)[:, None], 0.0)
        of_others += tl.where(term == 1, tl.sum(tl.where(other, p, 0.0), axis=1)[:, None], 0.0)
        for k in tl.static_range(OTHERS):
            value, _ = shaped(tables + k * TABLE, p, rest, PIECES)
            of_others += tl.where(term == k + 2, tl.sum(tl.where(other, value, 0.0), axis=1)[:, None], 0.0)
        p_true = tl.sum(tl.where(mine, p, 0.0), axis=0)[None, :]
        rest_true = tl.sum(tl.where(mine, rest, 0.0), axis=0)[None, :]
        for k in tl.static_range(LABEL):
            value, _ = shaped(tables + (OTHERS + k) * TABLE, p_true, rest_true, PIECES)
            of_label += tl.where(term == k + 2, tl.sum(tl.where(mine, value, 0.0), axis=1)[:, None], 0.0)
    c = tl.arange(0, C)[:, None]
    here = (c < classes) & (term < WIDTH)
    program = tl.program_id(1).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
    at = out + program * 2 * WIDTH * classes + term * classes + c
    tl.store(at, of_others, mask=here)
    tl.store(at + WIDTH * classes, of_label, mask=here)


@triton.jit
def _gradient_kernel(
    logits,
    target,
    tables,
    by_stats,
    rough,
    out,
    size,
    classes,
    void,
    stride_n,
    stride_c,
    stride_p,
    OTHERS: tl.constexpr,
    LABEL: tl.constexpr,
    PIECES: tl.constexpr,
    TABLE: tl.constexpr,
    VOID_SEEN: tl.constexpr,
    WIDTH: tl.constexpr,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
    KIND: tl.constexpr,
    AGAIN: tl.constexpr,
):
    rough += tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    if AGAIN:  # noqa: SIM102  # two, because AGAIN is decided by the compiler
        if tl.load(rough) == 0:  # good enough in float32
            return
    pixel = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))[None, :]
    p, rest, mine, other, top, label, _, offset = _softmax(
        logits, target, pixel, size, classes, void, stride_n, stride_c, stride_p, VOID_SEEN, C, KIND
    )
    c, is_rough = tl.arange(0, C)[:, None], 0
    by_p = tl.load(by_stats + classes + c, mask=c < classes, other=0.0)
    for k in tl.static_range(OTHERS):
        _, slope = shaped(tables + k * TABLE, p, rest, PIECES)
        by_p += tl.load(by_stats + (k + 2) * classes + c, mask=c < classes, other=0.0) * slope
        is_rough += tl.max((other & delicate(tables + k * TABLE, p, rest, PIECES)).to(tl.int32))
    by_stats += WIDTH * classes
    p_true = tl.sum(tl.where(mine, p, 0.0), axis=0)[None, :]
    rest_true = tl.sum(tl.where(mine, rest, 0.0), axis=0)[None, :]
    by_true = tl.load(by_stats + classes + label)
    for k in tl.static_range(LABEL):
        table = tables + (OTHERS + k) * TABLE
        _, slope = shaped(table, p_true, rest_true, PIECES)
        by_true += tl.load(by_stats + (k + 2) * classes + label) * slope
        is_rough += tl.max(delicate(table, p_true, rest_true, PIECES).to(tl.int32))
    if not AGAIN:
        tl.store(rough, is_rough)
    t = tl.where(mine, p_true * by_true, tl.where(other, p * by_p, 0.0))
    # A softmax's gradient adds up to 0 over classes. The likeliest class's own is right by that, not by 1 - p, which
    # has few digits left where the network is sure.
    gradient = tl.where(top, 0.0, t - p * tl.sum(t, axis=0)[None, :])
    gradient = tl.where(top, -tl.sum(gradient, axis=0)[None, :], gradient)
    tl.store(out + offset, gradient, mask=(c < classes) & (pixel < size))


def _launch(logits, target, tables, others, void, void_seen):
    """Return the arguments that both kernels take: tensors, numbers, and constants of the compilation."""
    if not (logits.is_contiguous() or logits.is_contiguous(memory_format=torch.channels_last)):
        logits = logits.contiguous()
    classes, label = logits.shape[1], len(tables) - others
    kind = torch.promote_types(logits.dtype, torch.float32)
    padded, block = tile(classes)
    stride_n, stride_c, _, stride_p = logits.stride()
    numbers = (logits.shape[2] * logits.shape[3], classes, void, stride_n, stride_c, stride_p)
    constants = {
        "OTHERS": others,
        "LABEL": label,
        "PIECES": tables.shape[1] - 1,
        "TABLE": tables.shape[1] * tables.shape[2],
        "VOID_SEEN": void_seen,
        "WIDTH": 2 + max(others, label),
        "C": padded,
        "BLOCK": block,
        "KIND": tl.float64 if kind == torch.float64 else tl.float32,
        "num_warps": padded * block // 256,
    }
    return (logits, target.contiguous(), tables.to(kind)), numbers, constants


def region_sums(logits, target, tables, others, void, void_seen):
    """See `device_region.region_sums`."""
    out = empty_sums(logits, target, tables, others, void, void_seen)
    tensors, numbers, constants = _launch(logits, target, tables, others, void, void_seen)
    if len(out):
        tiles, terms = max(SUMMED // constants["BLOCK"], 1), triton.next_power_of_2(constants["WIDTH"])
        grid = (len(out) // len(logits), len(logits))
        _sums_kernel[grid](*tensors, out, *numbers, TILES=tiles, TERMS=terms, **constants)
    return out


def region_gradient(logits, target, tables, by_stats, others, void, void_seen):
    """See `device_region.region_gradient`."""
    (logits, target, _), numbers, constants = _launch(logits, target, tables, others, void, void_seen)
    out = torch.empty_like(logits)
    if out.numel():
        grid = (triton.cdiv(numbers[0], constants["BLOCK"]), len(logits))
        rough = torch.empty(grid, dtype=torch.int32, device=out.device)
        kinds = (tl.float64,) if logits.dtype == torch.float64 else (tl.float32, tl.float64)
        for again, kind in enumerate(kinds):
            numbers_in = torch.float64 if kind == tl.float64 else torch.float32
            _gradient_kernel[grid](
                *(logits, target, tables.to(numbers_in), by_stats.to(numbers_in), rough, out),
                *numbers,
                **{**constants, "KIND": kind, "AGAIN": again > 0},
            )
    return out
