"""The table of docs/fidelity.md: every setting of the proxy task, the retraining and the evaluation, four times.

What the paper and the release say is written down here as facts, with their place. What the two presets do is read from
the code by docs/presets.py. A test holds the presets against the facts; a row that differs from them says why.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from docs.presets import Preset, Trained, background, sampling, shrinking, tested, view

PAGE = "docs/fidelity.md"
PRESETS = ("paper", "release")
BEGIN, END = "<!-- settings: written by `make reference` -->\n", "<!-- settings: end -->\n"


class Fact(NamedTuple):
    """What a source says, in the words that the code's values have, and where it says so."""

    value: str
    place: str

    def __str__(self) -> str:
        return f"{self.value} ({self.place})"


@dataclass(frozen=True)
class Row:
    """A setting: what the sources say, how it is read from the code, and why it differs from them, if it does."""

    part: str
    setting: str
    paper: Fact | None
    release: Fact | None
    here: Callable[[Preset], str]
    why: str = ""


# ------------------------------------------------------------------------------------------------ what is said


# Places: A is the paper's Appendix A; the other names are files of the release, which docs/fidelity.md lists.
_A, _V3 = "A", "DeepLabv3+"
_SEARCH, _RETRAIN = "search config", "retrain config"
_MODEL, _VOC, _SCHEDULE, _PPO = "model", "data set", "schedule", "search code"
_KEPT = "`paper`: as the release; the paper's numbers came out of it"
_MMSEG = "`release`: mmsegmentation's usual, none was released"
_TF32 = "V100s had no TF32; `tf32: false` forbids it"


def _rows() -> list[Row]:
    """Return the rows, in the order of the work."""

    def at(part: str, read: Callable[[Preset], Trained]) -> Callable[..., Row]:
        def row(
            setting: str, paper: Fact | None, release: Fact | None, here: Callable[[Trained], str], why: str = ""
        ) -> Row:
            return Row(part, setting, paper, release, lambda preset: here(read(preset)), why)

        return row

    proxy = at("proxy", lambda preset: preset.proxy)
    voc = at("retraining, VOC", lambda preset: preset.voc)
    cityscapes = at("retraining, Cityscapes", lambda preset: preset.cityscapes)
    test = at("evaluation", lambda preset: preset.voc)
    said = Fact
    return [
        proxy("iterations", said("1000", _A), said("1000", _SEARCH), lambda t: t.of("iterations")),
        proxy("batch", said("32", _A), said("32", _SEARCH), lambda t: t.of("batch_size")),
        proxy("crop", said("128 x 128", _A), said("128 x 128", _SEARCH), lambda t: t.of("crop")),
        proxy(
            "a 375 x 500 and a 90 x 500 image in training",
            None,
            said("128 x 171, 92 x 512; times 0.5 to 2", _SEARCH),
            lambda t: t.scale,
        ),
        proxy(
            "augmentation",
            None,
            said("one class at most 75%, flip 0.5, photometric distortion", _SEARCH),
            lambda t: t.augmentation,
        ),
        Row(
            "proxy",
            "images are shrunk",
            None,
            said("bilinear", "transforms, by OpenCV"),
            lambda preset: shrinking(),
            "without aliasing, once, into the cache; [measured](../benchmarks/README.md#shrinking)",
        ),
        Row(
            "proxy",
            "labels are taken",
            None,
            said("at its upper left corner", "transforms, by OpenCV"),
            lambda preset: sampling(),
            "where the image's pixel is; [the share that differs](../benchmarks/README.md#shrinking)",
        ),
        Row(
            "proxy",
            "images that score trials",
            said("1500 of the training images", "Sec. 4, A"),
            said("VOC's validation set", _PPO),
            lambda preset: f"{preset.pipeline.datasets['voc'].hold_out} of the training images",
            "nothing may be chosen on the images that the tables are measured on",
        ),
        proxy("view that is scored", None, said("centre, 128 x 128", _SEARCH), lambda t: view(t.training.short_side)),
        proxy("encoder", said("ResNet-50", _A), said("ResNet-50", _MODEL), lambda t: t.encoder),
        proxy("stem", None, said("3 of 3x3", "ResNetV1c, model"), lambda t: t.stem),
        proxy("output stride", None, said("8", _MODEL), lambda t: t.stride),
        proxy("head", None, said("dilations 1, 12, 24, 36; 512 channels", _MODEL), lambda t: t.head),
        proxy("parameters", None, said("43,591,418", "counted"), lambda t: t.parameters),
        proxy(
            "auxiliary head, the same loss",
            None,
            said("256 channels on stage 3; weight 0.4", _SEARCH),
            lambda t: t.auxiliary,
        ),
        proxy(
            "encoder's initial weights",
            said("ImageNet", _A),
            said("`open-mmlab://resnet50_v1c`", _MODEL),
            lambda t: t.initial,
            "the same network's on timm's hub; the release's file can be given as `weights`",
        ),
        proxy(
            "initial classifiers",
            said("at random", _A),
            said("deviation 0.01", "head"),
            lambda t: t.first_heads,
            "the release's way of drawing them",
        ),
        proxy("dropout", None, said("0.1 of whole channels, 2 heads", _MODEL), lambda t: t.dropout),
        proxy("batch statistics", None, said("BN on 1 GPU", _SEARCH), lambda t: t.statistics),
        proxy(
            "optimiser",
            said("SGD, momentum 0.9, lr 0.02, heads x10", _A),
            said("SGD, momentum 0.9, lr 0.02, heads x10", _SEARCH),
            lambda t: t.optimiser,
        ),
        proxy(
            "schedule",
            said("polynomial, power 0.9, to 0.0001", _A),
            said("polynomial, power 0.9, to 0.0001", _SCHEDULE),
            lambda t: t.schedule,
        ),
        proxy("weight decay", said("0.0005", _A), said("0.0005", _SCHEDULE), lambda t: t.weight_decay),
        proxy("a loss's sums are over", None, said("32 images", _PPO), lambda t: t.sums),
        proxy("precision", None, said("float32", _SEARCH), lambda t: t.precision, _TF32),
        Row(
            "proxy",
            "seeds of a search and its repeats",
            said("four repeats", "Fig. 3"),
            said("1", "search script"),
            lambda preset: preset.seeds("voc-mIoU", *(f"voc-mIoU-ppo2-{seed}" for seed in (1, 2, 3))),
            "of heads, batches and hold-out too; the trials of a search share them, the release's do not",
        ),
        voc("iterations", said("30000", _V3), said("10000", _RETRAIN), lambda t: t.of("iterations")),
        voc("batch", said("16", _V3), said("32", "8 on each of 4 GPUs, retrain config"), lambda t: t.of("batch_size")),
        voc("crop", said("513 x 513", _V3), said("512 x 512", _VOC), lambda t: t.of("crop")),
        voc(
            "a 375 x 500 and a 90 x 500 image in training",
            said("as they are; times 0.5 to 2", _V3),
            said("512 x 683, 369 x 2048; times 0.5 to 2", _VOC),
            lambda t: t.scale,
            _KEPT,
        ),
        voc(
            "augmentation",
            said("flip 0.5", _V3),
            said("one class at most 75%, flip 0.5, photometric distortion", _VOC),
            lambda t: t.augmentation,
            _KEPT,
        ),
        voc("encoder", said("ResNet-101", _A), said("ResNet-101", _RETRAIN), lambda t: t.encoder),
        voc("stem", None, said("3 of 3x3", "ResNetV1c, model"), lambda t: t.stem),
        voc("output stride", said("16", _V3), said("8", _MODEL), lambda t: t.stride, _KEPT),
        voc(
            "head",
            said("dilations 1, 6, 12, 18; 256 channels", _V3),
            said("dilations 1, 12, 24, 36; 512 channels", _MODEL),
            lambda t: t.head,
            _KEPT,
        ),
        voc("parameters", None, said("62,583,546", "counted"), lambda t: t.parameters),
        voc(
            "auxiliary head, the same loss",
            said("none", _V3),
            said("256 channels on stage 3; weight 0.4", _RETRAIN),
            lambda t: t.auxiliary,
            _KEPT,
        ),
        voc(
            "encoder's initial weights",
            said("ImageNet", _A),
            said("`open-mmlab://resnet101_v1c`", _RETRAIN),
            lambda t: t.initial,
            "as of the proxy",
        ),
        voc(
            "initial classifiers",
            said("at random", _A),
            said("deviation 0.01", "head"),
            lambda t: t.first_heads,
            "the release's way of drawing them",
        ),
        voc("dropout", None, said("0.1 of whole channels, 2 heads", _MODEL), lambda t: t.dropout),
        voc("batch statistics", None, said("SyncBN over 4 GPUs", _MODEL), lambda t: t.statistics),
        voc(
            "optimiser",
            said("SGD, momentum 0.9, lr 0.007, heads x1", _V3),
            said("SGD, momentum 0.9, lr 0.02, heads x10", _RETRAIN),
            lambda t: t.optimiser,
        ),
        voc(
            "schedule",
            said("polynomial, power 0.9, to 0", _V3),
            said("polynomial, power 0.9, to 0.0001", _SCHEDULE),
            lambda t: t.schedule,
        ),
        voc("weight decay", said("4e-05", _V3), said("0.0005", _SCHEDULE), lambda t: t.weight_decay),
        voc(
            "a loss's sums are over",
            None,
            said("8 images", "those of one GPU, retrain config"),
            lambda t: t.sums,
            "`paper`: its whole batch; the paper names no GPUs",
        ),
        Row(
            "retraining, VOC",
            "cross entropy is divided by",
            None,
            said("all pixels, void and padding too", "cross entropy"),
            Preset.cross_entropy,
        ),
        voc(
            "precision",
            None,
            said("float32; BF1: float16, loss scaled by 512", _RETRAIN),
            lambda t: t.precision,
            f"all rows alike; {_TF32}",
        ),
        voc(
            "seed",
            None,
            said("1", "retrain script"),
            lambda t: t.of("seed"),
            "a table's `seeds` says others",
        ),
        cityscapes("iterations", said("90000", _V3), None, lambda t: t.of("iterations"), _MMSEG),
        cityscapes("batch", said("16", _V3), None, lambda t: t.of("batch_size"), _MMSEG),
        cityscapes("crop", said("769 x 769", _V3), None, lambda t: t.of("crop"), _MMSEG),
        cityscapes(
            "optimiser", said("SGD, momentum 0.9, lr 0.007, heads x1", _V3), None, lambda t: t.optimiser, _MMSEG
        ),
        cityscapes("schedule", said("polynomial, power 0.9, to 0", _V3), None, lambda t: t.schedule, _MMSEG),
        cityscapes("weight decay", said("4e-05", _V3), None, lambda t: t.weight_decay, _MMSEG),
        cityscapes("a loss's sums are over", None, None, lambda t: t.sums, _MMSEG),
        Row(
            "retraining, Cityscapes",
            "a 1024 x 2048 image is scored at",
            None,
            None,
            lambda preset: tested(preset.cityscapes, 1024, 2048),
            _MMSEG,
        ),
        Row(
            "losses",
            "a class absent from the batch scores 0",
            None,
            said("mIoU, BIoU, mAcc", "loss code"),
            Preset.absent,
        ),
        Row(
            "losses",
            "BIoU: background's edges, band",
            None,
            said("left out, radius 5", "BIoU's configs"),
            lambda p: f"{background(p.in_loss('BIoU'))}, radius {p.in_loss('BIoU').boundary_radius}",
        ),
        Row(
            "losses",
            "BF1: background, tolerance",
            None,
            said("kept, 5 pixels", "BF1's configs"),
            lambda p: f"{background(p.in_loss('BF1'))}, {p.in_loss('BF1').tolerance} pixels",
        ),
        Row(
            "losses",
            "BIoU, BF1 on Cityscapes: class 0, road",
            None,
            None,
            lambda p: ", ".join(background(p.in_loss(metric, "cityscapes")) for metric in ("BIoU", "BF1")),
            "road is no background; nothing was released",
        ),
        test(
            "a 375 x 500 image is scored at",
            said("375 x 500", _V3),
            said("512 x 683", "img_scale (2048, 512), data set"),
            lambda t: tested(t, 375, 500),
            "`paper` at the scale of its training",
        ),
        test(
            "a 90 x 500 image is scored at",
            said("90 x 500", _V3),
            said("369 x 2048", _VOC),
            lambda t: tested(t, 90, 500),
            "`paper` at the scale of its training",
        ),
        Row(
            "evaluation",
            "BIoU: background's edges, band",
            None,
            said("left out, radius 5", "evaluator"),
            lambda p: f"{background(p.in_metric('BIoU'))}, radius {p.in_metric('BIoU').boundary_radius}",
        ),
        Row(
            "evaluation",
            "BF1: background, tolerance",
            None,
            said("left out, 5 pixels", "evaluator"),
            lambda p: f"{background(p.in_metric('BF1'))}, {p.in_metric('BF1').tolerance} pixels",
        ),
        Row(
            "evaluation",
            "BIoU, BF1 on Cityscapes: class 0, road",
            None,
            None,
            lambda p: ", ".join(background(p.in_metric(metric, "cityscapes")) for metric in ("BIoU", "BF1")),
            "the release's evaluator fails with a background that is kept",
        ),
    ]


ROWS: tuple[Row, ...] = tuple(_rows())


def values() -> list[dict[str, str]]:
    """Return what each preset does, row by row."""
    presets = {name: Preset(name) for name in PRESETS}
    return [{name: row.here(preset) for name, preset in presets.items()} for row in ROWS]


def table() -> str:
    """Return the table in markdown."""
    lines = ["| | setting | paper | release | preset `paper` | preset `release` | why it differs |", "|" + 7 * "---|"]
    before = ""
    for row, here in zip(ROWS, values(), strict=True):
        facts = [str(fact or "") for fact in (row.paper, row.release)]
        part = row.part if row.part != before else ""
        lines.append("| " + " | ".join([part, row.setting, *facts, *here.values(), row.why]) + " |")
        before = row.part
    return "\n".join(lines) + "\n"


def page(text: str) -> str:
    """Return the page with its table written anew."""
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}{table()}{END}{tail}"
