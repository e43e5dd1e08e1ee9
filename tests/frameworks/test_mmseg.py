"""mmsegmentation: its example runs, and the loss of the decode head is ours."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from unittest.mock import MagicMock

import pytest
import torch
import torch.nn.functional as F
from example_files import example

from autoseg import SurrogateLoss


@functools.cache
def run_once():
    """Run the example; a registry takes a name once.

    mmseg.models imports the compiled operators of mmcv, which mmcv-lite has not got. None is called here.
    """
    if importlib.util.find_spec("mmcv._ext") is None:
        sys.modules["mmcv._ext"] = MagicMock()
        try:
            importlib.import_module("mmseg.models")
        finally:
            del sys.modules["mmcv._ext"]
    return example("mmseg_loss")


@pytest.fixture
def ran(_packages):
    return run_once()


@pytest.mark.frameworks("mmengine", "mmcv-lite", "mmsegmentation")
def test_a_decode_head_trains_with_the_loss_of_its_config(ran):
    assert ran.log["decode.loss_autoseg"] < 0.2  # it has learned; 0.5 at the start
    data = ran.model.data_preprocessor({"inputs": list(ran.images), "data_samples": ran.samples}, True)
    ran.model.decode_head.dropout = None  # two passes are to be the same
    logits = ran.model.decode_head(ran.model.backbone(data["inputs"]))
    expected = SurrogateLoss.published("mIoU")(F.interpolate(logits, (64, 64), mode="bilinear"), ran.masks)
    torch.testing.assert_close(ran.model.loss(**data)["decode.loss_autoseg"], expected)


@pytest.mark.frameworks("mmengine", "mmcv-lite", "mmsegmentation")
def test_a_config_gives_the_loss_its_weight_and_options(ran):
    logits, target = torch.randn(2, 3, 8, 9), torch.randint(3, (2, 8, 9))
    target[:, :2] = 7
    config = {"type": "AutosegLoss", "name": "dice", "loss_weight": 0.5, "ignore_index": 7, "loss_name": "loss_dice"}
    loss = ran.MODELS.build(config)
    rest = ran.MODELS.build({**config, "ignore_index": None, "loss_weight": 1.0})
    assert loss.loss_name == "loss_dice"
    torch.testing.assert_close(loss(logits, target, ignore_index=7), 0.5 * rest(logits[:, :, 2:], target[:, 2:]))
