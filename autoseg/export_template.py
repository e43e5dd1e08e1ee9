"""A loss for semantic segmentation, searched for a metric (Auto Seg-Loss), in one file that needs torch alone.

ABOUT

Written by autoseg VERSION; the value and the gradient are those of `autoseg.surrogates.SurrogateLoss`, which is faster
and takes less memory. Use:

    loss = Loss(ignore_index=255)
    loss(logits, target).backward()     # logits (N, C, H, W), C = 1 for two classes; target (N, H, W), whole numbers
"""

import math

import torch
import torch.nn.functional as F

# A piece of a curve, from y = u0 on: y = u0 + b s + a s^2 and g = v0 + c s + d s^2 with s in [0, 1].
TERMS: list = []
STEEP = 1e-6


class Evaluate(torch.autograd.Function):
    """g(y), with g' capped where the curve is steep."""

    @staticmethod
    def forward(ctx, y, curve):
        value = slope = None
        for u0, v0, a, b, c, d in curve["pieces"]:
            x = y - u0
            if a == 0 and d == 0:  # a line
                g, dg = v0 + x * (c / b), torch.full_like(x, c / b)
            else:
                # D^2 = b^2 + 4 a x, counted from the end where it is the smaller, so that nothing cancels.
                square = b**2 + 4 * a * x if a >= 0 else (b + 2 * a) ** 2 - 4 * a * (u0 + b + a - y)
                root = square.clamp(min=STEEP**2).sqrt()
                s = (2 * x / (root + b)).clamp(max=1)
                g, dg = v0 + s * (c + s * d), (c + 2 * s * d) / root
            here = y >= u0
            value = g if value is None else torch.where(here, g, value)
            slope = dg if slope is None else torch.where(here, dg, slope)
        value = torch.where(y <= 0, torch.full_like(y, curve["start"]), value)
        value = torch.where(y >= 1, torch.full_like(y, curve["end"]), value)
        ctx.save_for_backward(slope)
        return value

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0], None


def max_pool(x, radius):
    radius_h, radius_w = (min(radius, size - 1) for size in x.shape[-2:])
    return F.max_pool2d(x, (2 * radius_h + 1, 2 * radius_w + 1), stride=1, padding=(radius_h, radius_w))


def min_pool(x, seen=1):
    return -max_pool(-(x * seen + (1 - seen)), 1)


def boundary(y, seen=1):
    """y XOR Min-Pooling(y), of a hard map."""
    inner = min_pool(y, seen)
    return y + inner - 2 * y * inner


def ratio(numerator, denominator, empty=math.nan):
    some = denominator.abs() > 1e-8
    quotient = numerator / torch.where(some, denominator, torch.ones_like(denominator))
    return torch.where(some, quotient, torch.full_like(quotient, empty))


class Term:
    """1 - one surrogate."""

    def __init__(self, term):
        self.term = term

    def operands(self, operator, a, b):
        curves = (self.term["curves"].get(name) for name in self.term["operands"][operator])
        return [x if curve is None else Evaluate.apply(x.clamp(0, 1), curve) for x, curve in zip((a, b), curves)]

    def AND(self, operator, a, b):
        a, b = self.operands(operator, a, b)
        return a * b

    def OR(self, operator, a, b):
        a, b = self.operands(operator, a, b)
        return a + b - a * b

    def maps(self, p, y, valid):
        """The maps whose sums over pixels the metric is made of."""
        metric, term = self.term["metric"], self.term
        if metric in ("gAcc", "mAcc"):
            return {"inter": self.AND("AND", p, y), "all": y, "target": y}
        if metric in ("mIoU", "FWIoU"):
            return {"inter": self.AND("AND", p, y), "all": self.OR("OR", p, y), "target": y}
        if metric == "BIoU":
            edges = boundary(y)[:, 1 if term["drop_background"] else 0 :]
            band = max_pool(edges.sum(1, keepdim=True).clamp(max=1), term["boundary_radius"])
            return {"inter": band * self.AND("AND", p, y), "all": band * self.OR("OR", p, y), "target": band * y}
        seen = valid if term["mask_void"] else 1  # else void is a pixel of no class
        inner, edge = min_pool(p, seen), boundary(y, seen)
        found = self.OR("edge.OR", p, inner) - self.AND("edge.AND", p, inner)
        near, near_found = (max_pool(x * seen, term["tolerance"]) for x in (edge, found))
        return {
            "matched_found": self.AND("precision", found, near),
            "found": found,
            "matched_target": self.AND("recall", near_found, edge),
            "target": edge,
        }

    def __call__(self, p, y, valid):
        metric, term = self.term["metric"], self.term
        masked = metric != "BF1" or term["mask_void"]
        sums = {
            name: (x * valid if masked else x).sum((0, 2, 3), dtype=torch.float64)
            for name, x in self.maps(p, y, valid).items()
        }
        if metric == "BF1":
            precision = ratio(sums["matched_found"], sums["found"], 0.0).clamp(0, 1)
            recall = ratio(sums["matched_target"], sums["target"], 0.0).clamp(0, 1)
            values = ratio(2 * precision * recall, precision + recall, 0.0)
            values = values.masked_fill(sums["target"] == 0, math.nan)
        else:
            values = ratio(sums["inter"], sums["all"])
        measured = ~torch.isnan(values)
        if term["absent"] == "skip":
            measured = measured & (sums["target"] > 0)
        values = torch.where(measured, values, torch.zeros_like(values))
        weight = sums["target"] if metric in ("gAcc", "FWIoU") else torch.ones_like(values)
        if term["absent"] == "skip":
            weight = weight * measured
        if metric == "BF1" and term["drop_background"]:
            weight = torch.cat([torch.zeros_like(weight[:1]), weight[1:]])
        loss = 1 - ratio((weight * values).sum(), weight.sum(), 0.0)
        finite = torch.stack([value.isfinite().all() for value in sums.values()]).all()
        return torch.where(finite, loss, torch.full_like(loss, math.nan))


class Loss(torch.nn.Module):
    """The weighted sum of the terms; pixels labelled `ignore_index`, or with no class's number, count nowhere."""

    def __init__(self, ignore_index=255):
        super().__init__()
        self.ignore_index = ignore_index

    def forward(self, logits, target):
        logits = logits if logits.dtype == torch.float64 else logits.float()
        if logits.shape[1] == 1:  # two classes, with the probabilities 1 - p and p
            logits = torch.cat([torch.zeros_like(logits), logits], dim=1)
        with torch.autocast(logits.device.type, enabled=False):
            classes = torch.arange(logits.shape[1], device=logits.device).view(1, -1, 1, 1)
            y = target.unsqueeze(1) == classes
            if self.ignore_index is not None:
                y = y & (target != self.ignore_index).unsqueeze(1)
            p, y = logits.softmax(1), y.to(logits.dtype)
            valid = y.sum(1, keepdim=True)
            return sum(term["weight"] * Term(term)(p, y, valid) for term in TERMS).to(logits.dtype)
