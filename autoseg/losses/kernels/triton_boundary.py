"""BF1's kernels in Triton; see `device_boundary` for what each returns.

The first and the third work on pixels of one plane (an image and a class), the second on pixels of all classes, looking
at the plane of their own class only, the fourth on tiles of all classes x some pixels.
"""

# mypy: ignore-errors

import torch
import triton
import triton.language as tl

from autoseg.losses.kernels.device import SUMMED, tile
from autoseg.losses.kernels.triton_curve import cut

WORD = tl.constexpr(32)  # classes in a word of `near`


@triton.jit
def _curve(tables, x, NUMBER: tl.constexpr, TABLE: tl.constexpr, PIECES: tl.constexpr):
    """Return g and g' of x cut to [0, 1], or x itself without a curve."""
    value, slope = x, tl.full(x.shape, 1.0, x.dtype)
    if NUMBER >= 0:
        value, slope = cut(tables + NUMBER * TABLE, x, PIECES)
    return value, slope


@triton.jit
def _read(p, seen, i, height, width, MASKED: tl.constexpr, classes):
    """Return p, its least neighbour in the 3x3 window, and in which direction that is, at pixels i of a plane."""
    size = height * width
    plane = tl.program_id(0).to(tl.int64) * size
    image = (tl.program_id(0) // classes).to(tl.int64) * size
    row, column, inside = i // width, i % width, i < size
    x = tl.load(p + plane + i, mask=inside, other=0.0)
    least, direction = tl.full(x.shape, 2.0, x.dtype), tl.zeros(x.shape, tl.int32)
    for k in tl.static_range(9):
        there = i + (k // 3 - 1) * width + k % 3 - 1
        r, c = row + (k // 3 - 1), column + (k % 3 - 1)
        here = inside & (r >= 0) & (r < height) & (c >= 0) & (c < width)
        neighbour = tl.load(p + plane + there, mask=here, other=2.0)
        if MASKED:
            neighbour = tl.where(tl.load(seen + image + there, mask=here, other=1) != 0, neighbour, 1.0)
        less = neighbour < least
        least, direction = tl.where(less, neighbour, least), tl.where(less, k, direction)
    return x, least, direction


@triton.jit
def _soft_edge(tables, x, least, AND_A, AND_B, OR_A, OR_B, TABLE, PIECES):
    """Return the soft edge and its derivatives by x and by its least neighbour."""
    g1, d1 = _curve(tables, x, AND_A, TABLE, PIECES)
    g2, d2 = _curve(tables, least, AND_B, TABLE, PIECES)
    g3, d3 = _curve(tables, x, OR_A, TABLE, PIECES)
    g4, d4 = _curve(tables, least, OR_B, TABLE, PIECES)
    # OR - AND, in a form that keeps its digits where all are small
    return g3 * (1 - g4) + g4 - g1 * g2, d3 * (1 - g4) - d1 * g2, d4 * (1 - g3) - d2 * g1


@triton.jit
def _weights(near, seen, i, size, images, classes, MASKED: tl.constexpr):
    """Return whether the plane's class has an edge of the target near pixels i, and whether they are seen."""
    plane = tl.program_id(0)
    image, c = (plane // classes).to(tl.int64), plane % classes
    bits = tl.load(near + ((c // WORD).to(tl.int64) * images + image) * size + i, mask=i < size, other=0)
    is_seen = i < size
    if MASKED:
        is_seen = is_seen & (tl.load(seen + image * size + i, mask=i < size, other=0) != 0)
    return ((bits >> (c % WORD)) & 1) != 0, is_seen


@triton.jit
def _soft_edges_kernel(
    p,
    near,
    seen,
    tables,
    out,
    sums,
    images,
    classes,
    height,
    width,
    MASKED: tl.constexpr,
    AND_A: tl.constexpr,
    AND_B: tl.constexpr,
    OR_A: tl.constexpr,
    OR_B: tl.constexpr,
    PRECISION: tl.constexpr,
    TABLE: tl.constexpr,
    PIECES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    size = height * width
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x, least, _ = _read(p, seen, i, height, width, MASKED, classes)
    e, _, _ = _soft_edge(tables, x, least, AND_A, AND_B, OR_A, OR_B, TABLE, PIECES)
    is_near, is_seen = _weights(near, seen, i, size, images, classes, MASKED)
    e = tl.where(is_seen, e, 0.0)
    hit, _ = _curve(tables, e, PRECISION, TABLE, PIECES)
    tl.store(out + tl.program_id(0).to(tl.int64) * size + i, e, mask=i < size)
    at = sums + (tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)) * 2
    tl.store(at, tl.sum(tl.where(is_near, hit, 0.0)))
    tl.store(at + 1, tl.sum(e))


@triton.jit
def _best_match_kernel(
    e,
    labels,
    edge,
    tables,
    slope,
    where,
    sums,
    classes,
    height,
    width,
    rows,
    columns,
    RECALL: tl.constexpr,
    TABLE: tl.constexpr,
    PIECES: tl.constexpr,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
    STEPS: tl.constexpr,
    KIND: tl.constexpr,
):
    size, image = height * width, tl.program_id(0).to(tl.int64)
    c = tl.arange(0, C)
    matched, edges = tl.zeros((C,), KIND), tl.zeros((C,), KIND)
    for step in range(STEPS):
        i = (tl.program_id(1) * STEPS + step) * BLOCK + tl.arange(0, BLOCK)
        inside = i < size
        is_edge = inside & (tl.load(edge + image * size + i, mask=inside, other=0) != 0)
        label = tl.where(is_edge, tl.load(labels + image * size + i, mask=inside, other=0), 0)
        plane = (image * classes + label) * size
        row, column = i // width, i % width
        best, place = tl.full((BLOCK,), -2.0, KIND), i
        if tl.max(is_edge.to(tl.int32), axis=0) > 0:
            for down in range(-rows, rows + 1):
                for right in range(-columns, columns + 1):
                    r, k = row + down, column + right
                    here = is_edge & (r >= 0) & (r < height) & (k >= 0) & (k < width)
                    value = tl.load(e + plane + r * width + k, mask=here, other=-2.0)  # soft edges are in [-1, 1]
                    better = value > best
                    best, place = tl.where(better, value, best), tl.where(better, r * width + k, place)
        found, by = _curve(tables, best, RECALL, TABLE, PIECES)
        tl.store(slope + image * size + i, tl.where(is_edge, by, 0.0), mask=inside)
        tl.store(where + image * size + i, plane + place, mask=inside)
        mine = is_edge[None, :] & (label[None, :] == c[:, None])
        matched += tl.sum(tl.where(mine, found[None, :], 0.0), axis=1)
        edges += tl.sum(mine.to(KIND), axis=1)
    at = sums + (image * tl.num_programs(1) + tl.program_id(1)) * 2 * classes + c
    tl.store(at, matched, mask=c < classes)
    tl.store(at + classes, edges, mask=c < classes)


@triton.jit
def _edge_gradient_kernel(
    p,
    by_edge,
    near,
    seen,
    tables,
    by,
    by_p,
    by_least,
    direction,
    images,
    classes,
    height,
    width,
    MASKED: tl.constexpr,
    AND_A: tl.constexpr,
    AND_B: tl.constexpr,
    OR_A: tl.constexpr,
    OR_B: tl.constexpr,
    PRECISION: tl.constexpr,
    TABLE: tl.constexpr,
    PIECES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    size, c = height * width, tl.program_id(0) % classes
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * size + i
    x, least, where = _read(p, seen, i, height, width, MASKED, classes)
    e, of_x, of_least = _soft_edge(tables, x, least, AND_A, AND_B, OR_A, OR_B, TABLE, PIECES)
    is_near, is_seen = _weights(near, seen, i, size, images, classes, MASKED)
    _, slope = _curve(tables, e, PRECISION, TABLE, PIECES)
    weight = tl.load(by + classes + c) + tl.where(is_near, tl.load(by + c) * slope, 0.0)
    weight = tl.where(is_seen, weight + tl.load(by_edge + at, mask=i < size, other=0.0), 0.0)
    tl.store(by_p + at, weight * of_x, mask=i < size)
    tl.store(by_least + at, weight * of_least, mask=i < size)
    tl.store(direction + at, where.to(tl.uint8), mask=i < size)


@triton.jit
def _route_kernel(
    p,
    by_p,
    by_least,
    direction,
    seen,
    out,
    classes,
    height,
    width,
    MASKED: tl.constexpr,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
):
    size, image = height * width, tl.program_id(1).to(tl.int64)
    i = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))[None, :]
    c = tl.arange(0, C)[:, None]
    inside = (i < size) & (c < classes)
    at = (image * classes + c) * size + i
    x = tl.load(p + at, mask=inside, other=0.0)
    t = tl.load(by_p + at, mask=inside, other=0.0)
    row, column = i // width, i % width
    for k in tl.static_range(9):  # the neighbour in direction k has this pixel in the opposite one
        r, q = row + (k // 3 - 1), column + (k % 3 - 1)
        here = inside & (r >= 0) & (r < height) & (q >= 0) & (q < width)
        there = at + (k // 3 - 1) * width + k % 3 - 1
        chosen = tl.load(direction + there, mask=here, other=9) == 8 - k
        t += tl.load(by_least + there, mask=here & chosen, other=0.0)
    if MASKED:
        t = tl.where(tl.load(seen + image * size + i, mask=i < size, other=0) != 0, t, 0.0)
    t *= x
    tl.store(out + at, t - x * tl.sum(t, axis=0)[None, :], mask=inside)


def _constants(tables, which, seen):
    names = ("AND_A", "AND_B", "OR_A", "OR_B", "PRECISION")
    return {
        **dict(zip(names, which, strict=False)),
        "TABLE": tables.shape[1] * tables.shape[2],
        "PIECES": tables.shape[1] - 1,
        "MASKED": seen is not None,
        "BLOCK": SUMMED,
    }


def soft_edges(p, near, seen, tables, which):
    """See `device_boundary.soft_edges`."""
    n, classes, height, width = p.shape
    grid = (n * classes, triton.cdiv(height * width, SUMMED))
    out, sums = torch.empty_like(p), p.new_empty(*grid, 2)
    if out.numel():
        tensors = (p, near, near if seen is None else seen, tables.to(p.dtype), out, sums)
        _soft_edges_kernel[grid](*tensors, n, classes, height, width, **_constants(tables, which, seen))
    return out, sums


def best_match(e, labels, edge, tables, recall, tolerance):
    """See `device_boundary.best_match`."""
    n, classes, height, width = e.shape
    padded, _ = tile(classes)
    block = min(max(4096 // padded, 16), SUMMED)
    grid = (n, triton.cdiv(height * width, SUMMED))
    slope, where = torch.empty_like(labels, dtype=e.dtype), torch.empty_like(labels)
    sums = e.new_empty(n * grid[1], 2, classes)
    if sums.numel():
        _best_match_kernel[grid](
            *(e, labels, edge, tables.to(e.dtype), slope, where, sums),
            *(classes, height, width, min(tolerance, height - 1), min(tolerance, width - 1)),
            RECALL=recall,
            TABLE=tables.shape[1] * tables.shape[2],
            PIECES=tables.shape[1] - 1,
            C=padded,
            BLOCK=block,
            STEPS=max(SUMMED // block, 1),
            KIND=tl.float64 if e.dtype == torch.float64 else tl.float32,
        )
    return slope, where, sums


def edge_gradient(p, by_edge, near, seen, tables, which, by):
    """See `device_boundary.edge_gradient`."""
    n, classes, height, width = p.shape
    grid = (n * classes, triton.cdiv(height * width, SUMMED))
    out = torch.empty_like(p), torch.empty_like(p), torch.empty_like(p, dtype=torch.uint8)
    if p.numel():
        tensors = (p, by_edge, near, near if seen is None else seen, tables.to(p.dtype), by.contiguous(), *out)
        _edge_gradient_kernel[grid](*tensors, n, classes, height, width, **_constants(tables, which, seen))
    return out


def route(p, by_p, by_least, direction, seen):
    """See `device_boundary.route`."""
    n, classes, height, width = p.shape
    padded, block = tile(classes)
    out = torch.empty_like(p)
    if p.numel():
        _route_kernel[(triton.cdiv(height * width, block), n)](
            *(p, by_p, by_least, direction, direction if seen is None else seen, out, classes, height, width),
            MASKED=seen is not None,
            C=padded,
            BLOCK=block,
            num_warps=padded * block // 256,
        )
    return out
