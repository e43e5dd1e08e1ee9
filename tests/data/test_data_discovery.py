"""What `autoseg auto` makes of a folder: layouts, classes and splits that nobody named; or one sentence."""

from __future__ import annotations

import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from autoseg.data.check import check
from autoseg.data.discovery import Discovered, discover
from autoseg.data.kinds import KINDS
from autoseg.data.source import Source
from autoseg.errors import InputError, errors, summary

COUNT = 12


def image(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(zlib.crc32(str(path).encode()))
    Image.fromarray(rng.integers(0, 255, (40, 50, 3), dtype=np.uint8)).save(path)


def mask(path: Path, values: list, **options) -> None:
    """Write bands of values, or of colours."""
    path.parent.mkdir(parents=True, exist_ok=True)
    bands = np.array(values, np.uint8)[np.arange(40) * len(values) // 40]
    shape = (40, 50, *bands.shape[1:])
    Image.fromarray(np.ascontiguousarray(np.broadcast_to(bands[:, None], shape))).save(path, **options)


def found(root: Path, monkeypatch) -> tuple[Discovered, Source]:
    """Discover a folder, write the files that it needs, and open it as the pipeline would."""
    out = root.parent / "out"
    out.mkdir(exist_ok=True)
    monkeypatch.chdir(out)
    one = discover(root, "auto")
    for name, text in one.files.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    return one, KINDS[one.kind].model_validate(one.options).find()


def names(source: Source) -> list[str]:
    return [info.name for info in source.classes]


LAYOUTS = {
    "images and masks": ("images/{}.jpg", "masks/{}.png"),
    "below a folder whose name is like that of masks": ("Set-SEG/images/{}.jpg", "Set-SEG/masks/{}.png"),
    "suffix": ("image/{}.jpg", "mask/{}_mask.png"),
    "one folder": ("{}.jpg", "{}_mask.png"),
    "satellite": ("train/{}_sat.jpg", "train/{}_mask.png"),
    "names that say nothing": ("a/{}.jpg", "b/{}.png"),
    "CamVid's first": ("701_StillsRaw_full/{}.png", "LabeledApproved_full/{}_L.png"),
    "with train": ("train/images/{}.jpg", "train/labels/{}.png"),
    "deep": ("data/imgs/train/{}.jpg", "data/annotations/train/{}.png"),
    "the image's ending kept": ("images/{}.jpg", "masks/{}.jpg.png"),
    "prefix": ("{}.jpg", "mask_{}.png"),
    "mmsegmentation's below images": ("Images/img_dir/train/{}.jpg", "Images/ann_dir/train/{}.png"),
    "two prefixes": ("images/image_{}.jpg", "masks/mask-{}.png"),
    "commas": ("images/{}, a; b.jpg", "masks/{}, a; b.png"),
    "unknown words below a split": ("training/images/{}_tr.png", "training/1st_manual/{}_manual1.png"),
    "words that are nowhere known": ("images/{}_scanner.jpg", "gt/{}_by_hand.png"),
    "Cityscapes' folders with labels of others": (
        "leftImg8bit/train/a/{}_leftImg8bit.png",
        "gtFine/train/a/{}_gtFine_labellevel3Ids.png",
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_pairs_are_found_whatever_their_folders_are_called(layout, tmp_path, monkeypatch):
    for k in range(COUNT):
        image(tmp_path / "set" / LAYOUTS[layout][0].format(f"x{k}"))
        mask(tmp_path / "set" / LAYOUTS[layout][1].format(f"x{k}"), [0, 1, 2])
    one, source = found(tmp_path / "set", monkeypatch)
    assert names(source) == ["background", "class-1", "class-2"]
    assert sum(sample.split == "val" for sample in source.samples) == COUNT // 4
    assert len(source.samples) == COUNT
    assert not errors(check(source))
    assert one.has_background


@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_black_and_white_masks_are_two_classes_also_as_jpeg(suffix, tmp_path, monkeypatch):
    for k in range(COUNT):
        image(tmp_path / f"set/images/{k}.jpg")
        mask(tmp_path / f"set/masks/{k}.{suffix}", [0, 255] if k else [0])
    one, source = found(tmp_path / "set", monkeypatch)
    assert one.options["binary"]
    assert names(source) == ["background", "object"]
    assert not errors(check(source))


def test_smoothed_black_and_white_masks_are_two_classes_and_numbers_of_instances_none(tmp_path, monkeypatch):
    for k in range(COUNT):
        image(tmp_path / f"a/set/images/{k}.jpg")
        place = tmp_path / f"a/set/masks/{k}.png"
        mask(place, [0, 255])
        Image.open(place).resize((500, 400), Image.Resampling.BICUBIC).resize((50, 40), Image.Resampling.BOX).save(
            place
        )
        smooth = np.array(Image.open(place))
        smooth[20, :12] = range(10, 130, 10)
        Image.fromarray(smooth).save(place)
        image(tmp_path / f"b/set/images/{k}.jpg")
        numbers = np.arange(40 * 50, dtype=np.uint16).reshape(40, 50)
        (tmp_path / "b/set/masks").mkdir(exist_ok=True)
        Image.fromarray(numbers).save(tmp_path / f"b/set/masks/{k}.png")
    one, source = found(tmp_path / "a/set", monkeypatch)
    assert one.options["binary"]
    assert not errors(check(source))
    with pytest.raises(InputError, match="masks hold"):
        discover(tmp_path / "b/set", "auto")


def test_camvid_has_its_own_classes_and_its_own_splits(tmp_path, monkeypatch):
    for split in ("train", "val", "test"):
        for k in range(COUNT):
            image(tmp_path / f"set/{split}/{split}{k}.png")
            mask(tmp_path / f"set/{split}annot/{split}{k}.png", [0, 3, 11])
    one, source = found(tmp_path / "set", monkeypatch)
    assert names(source)[:2] == ["sky", "building"]
    assert one.has_background is False
    assert {sample.split for sample in source.samples} == {"train", "val"}
    assert not errors(check(source))


COLOURS = [(0, 0, 0), (128, 0, 0), (0, 128, 64)]


def coloured(root: Path) -> None:
    for k in range(COUNT):
        image(root / f"images/{k}.jpg")
        mask(root / f"masks/{k}.png", COLOURS)


def test_colour_coded_masks_are_understood_with_and_without_a_table(tmp_path, monkeypatch):
    coloured(tmp_path / "a/set")
    _, source = found(tmp_path / "a/set", monkeypatch)
    assert names(source) == ["background", "colour-008040", "colour-800000"]
    coloured(tmp_path / "b/set")
    (tmp_path / "b/set/class_dict.csv").write_text("name,r,g,b\nbg,0,0,0\nroof,128,0,0\ntree,0,128,64\n")
    one, source = found(tmp_path / "b/set", monkeypatch)
    assert names(source) == ["bg", "roof", "tree"]
    assert one.has_background
    assert not errors(check(source))
    coloured(tmp_path / "c/set")
    cvat = "# label:color_rgb:parts:actions\nbackground:0,0,0::\nroof:128,0,0::\ntree:0,128,64::\n"
    (tmp_path / "c/set/labelmap.txt").write_text(cvat)
    _, source = found(tmp_path / "c/set", monkeypatch)
    assert names(source) == ["background", "roof", "tree"]


def test_too_many_colours_are_answered_in_one_sentence(tmp_path):
    for k in range(COUNT):
        image(tmp_path / f"images/{k}.jpg")
        image(tmp_path / f"masks/{k}.png")
    with pytest.raises(InputError, match="different colours; expected one colour a class") as error:
        discover(tmp_path, "auto")
    assert "\n" not in str(error.value)


def test_lists_of_names_say_the_splits(tmp_path, monkeypatch):
    for k in range(COUNT):
        image(tmp_path / f"set/images/{k}.jpg")
        mask(tmp_path / f"set/masks/{k}.png", [0, 1])
    (tmp_path / "set/train.txt").write_text("".join(f"{k}.jpg\n" for k in range(9)))
    (tmp_path / "set/val.txt").write_text("9\n10\n")
    _, source = found(tmp_path / "set", monkeypatch)
    assert [sample.split for sample in source.samples].count("val") == 2
    assert len(source.samples) == 11


def test_a_value_too_many_is_one_line_with_its_cure(tmp_path, monkeypatch):
    for k in range(COUNT):
        image(tmp_path / f"set/images/{k}.jpg")
        mask(tmp_path / f"set/masks/{k}.png", [0, 1, 2])
    (tmp_path / "set/classes.txt").write_text("background\ncat\n")
    _, source = found(tmp_path / "set", monkeypatch)
    lines = [line for line in summary(check(source)).splitlines() if "values 2" in line]
    assert len(lines) == 1
    assert f"{COUNT} of:" in lines[0]
    assert "add a line `void` at the end of classes.txt" in lines[0]


def test_images_without_masks_are_left_out_and_named_once(tmp_path, monkeypatch):
    for k in range(2 * COUNT):
        image(tmp_path / f"set/images/{k}.jpg")
        if k % 2:
            mask(tmp_path / f"set/masks/{k}.png", [0, 1])
    one, source = found(tmp_path / "set", monkeypatch)
    assert len(source.samples) == COUNT
    assert len(summary(one.problems).splitlines()) == 1


@pytest.mark.parametrize("what", ["nothing", "a file", "images alone"])
def test_a_folder_that_holds_no_pairs_is_refused_in_a_sentence(what, tmp_path):
    place = tmp_path / "set"
    if what == "a file":
        place.write_text("x")
    else:
        place.mkdir()
    if what == "images alone":
        for k in range(COUNT):
            image(place / f"{k}.jpg")
    with pytest.raises(InputError) as error:
        discover(place, "auto")
    assert str(place) in error.value.where
    assert "\n" not in str(error.value)


def test_equal_names_in_several_folders_belong_to_the_nearest_mask_and_never_to_another_s(tmp_path, monkeypatch):
    for k in range(COUNT):
        for part in ("a", "b"):
            image(tmp_path / f"set/{part}/scan/{k}.png")
            mask(tmp_path / f"set/{part}/hand/{k}.png", [0, 1])
    _, source = found(tmp_path / "set", monkeypatch)
    assert len(source.samples) == 2 * COUNT
    for sample in source.samples:
        assert sample.mask == sample.image.replace("scan", "hand")
    for k in range(COUNT):
        (tmp_path / f"set/b/hand/{k}.png").unlink()
        image(tmp_path / f"set/c/scan/{k}.png")
    one = discover(tmp_path / "set", "auto")
    assert {problem.what for problem in one.problems} == {"the image has no mask"}
    assert len(one.problems) == 2 * COUNT


def test_of_several_masks_of_an_image_the_one_with_classes_is_taken_and_the_others_are_said(tmp_path, monkeypatch):
    for k in range(COUNT):
        split = "validation" if k % 4 == 0 else "training"
        image(tmp_path / f"set/{split}/images/{k}.jpg")
        mask(tmp_path / f"set/{split}/v1/labels/{k}.png", [0, 1, 2])
        mask(tmp_path / f"set/{split}/v1/instances/{k}.png", range(40))
        mask(tmp_path / f"set/{split}/v1/panoptic/{k}.png", COLOURS)
    one, source = found(tmp_path / "set", monkeypatch)
    assert {Path(sample.mask).parts[-2] for sample in source.samples} == {"labels"}
    (line,) = summary(one.problems).splitlines()
    assert f"{2 * COUNT} of: its image has another mask" in line


def test_splits_are_words_of_folders_names_too(tmp_path, monkeypatch):
    for k in range(COUNT):
        for split in ("Training", "Validation"):
            image(tmp_path / f"set/ISIC-2017_{split}_Data/ISIC_{k}.jpg")
            mask(tmp_path / f"set/ISIC-2017_{split}_Part1_GroundTruth/ISIC_{k}_segmentation.png", [0, 255])
    one, source = found(tmp_path / "set", monkeypatch)
    assert "own train and val" in one.said[0]
    for sample in source.samples:
        assert ("Training" if sample.split == "train" else "Validation") in sample.image
        assert sample.mask.split("_")[1] == sample.image.split("_")[1]


def test_a_list_of_validation_images_alone_leaves_the_others_to_train_with(tmp_path, monkeypatch):
    for k in range(COUNT):
        for part in ("a", "b b"):
            image(tmp_path / f"set/{part}/images/{k}.jpg")
            mask(tmp_path / f"set/{part}/labels/{k}_P.png", [0, 1])
    (tmp_path / "set/valid.txt").write_text("a/images/3.jpg\nb b/images/4.jpg\n")
    one, source = found(tmp_path / "set", monkeypatch)
    assert [s.image for s in source.samples if s.split == "val"] == ["data/a/images/3.jpg", "data/b b/images/4.jpg"]
    assert len(source.samples) == 2 * COUNT
    assert one.said[0].endswith("as valid.txt says")


def test_voc_s_layout_is_voc_by_the_names_of_its_images_alone_and_needs_no_sbd(tmp_path, monkeypatch):
    for where, name in (("own", "scan-{}"), ("voc", "2007_{:06}")):
        root = tmp_path / where / "set"
        for k in range(COUNT):
            image(root / f"JPEGImages/{name.format(k)}.jpg")
            mask(root / f"SegmentationClass/{name.format(k)}.png", [0, 1, 2])
        lists = root / "ImageSets/Segmentation"
        lists.mkdir(parents=True)
        (lists / "train.txt").write_text("".join(f"{name.format(k)}\n" for k in range(8)))
        (lists / "val.txt").write_text("".join(f"{name.format(k)}\n" for k in range(8, COUNT)))
    one, source = found(tmp_path / "own/set", monkeypatch)
    assert (one.kind, len(source.classes)) == ("folder", 3)
    assert "ImageSets/Segmentation" in one.said[0]
    one, source = found(tmp_path / "voc/set", monkeypatch)
    assert (one.kind, one.options["sbd"], len(source.classes)) == ("voc", "none", 21)
    assert [sample.split for sample in source.samples].count("val") == 4


OTHER_FORMS = {
    "annotations/instances_train2017.json": "COCO",
    "images/0.json": "JSON",
    "labels/0.txt": "YOLO",
    "annotations/0.xml": "XML",
    "masks/0.npy": "array",
    "masks.zip": "archive",
}


@pytest.mark.parametrize("name", OTHER_FORMS)
def test_annotations_in_another_form_are_named_with_what_to_do(name, tmp_path):
    for k in range(COUNT):
        image(tmp_path / f"set/images/{k}.jpg")
        path = tmp_path / "set" / name.replace("0", str(k))
        path.parent.mkdir(exist_ok=True)
        path.write_text("0 0.1 0.1 0.5 0.5")
    with pytest.raises(InputError) as error:
        discover(tmp_path / "set", "auto")
    assert OTHER_FORMS[name] in error.value.what
    assert error.value.cure
    assert "\n" not in str(error.value)


def test_an_archive_for_a_folder_is_to_be_unpacked(tmp_path):
    (tmp_path / "set.zip").write_bytes(b"PK")
    with pytest.raises(InputError) as error:
        discover(tmp_path / "set.zip", "auto")
    assert "unpack" in error.value.cure


def test_many_images_beside_their_masks_are_paired_in_a_moment(tmp_path):
    from autoseg.data.layouts import find_pairs

    for k in range(3000):
        (tmp_path / f"{k}.jpg").touch()
        (tmp_path / f"{k}_mask.png").touch()
    began = time.process_time()
    assert find_pairs(tmp_path).count == 3000
    assert time.process_time() - began < 2


def folder_of(root: Path, masks: list[tuple], classes: str = "", name: str = "classes.txt", **options) -> Path:
    """Write images, masks of bands of these values in turn, and a class list."""
    for k in range(COUNT):
        image(root / f"images/{k}.jpg")
        mask(root / f"masks/{k}.png", list(masks[k % len(masks)]), **options)
    if classes:
        (root / name).write_text(classes)
    return root


def remarks_of(source: Source) -> str:
    return summary(check(source))


@pytest.mark.parametrize("classes", ["background\nlesion\n", "lesion\n"])
def test_a_list_of_two_names_or_the_object_s_alone_names_black_and_white_masks(classes, tmp_path, monkeypatch):
    folder_of(tmp_path / "set", [(0, 255)], classes)
    one, source = found(tmp_path / "set", monkeypatch)
    assert one.options["binary"]
    assert names(source) == ["background", "lesion"]
    assert not errors(check(source))


def test_a_list_with_colours_also_names_masks_of_class_numbers(tmp_path, monkeypatch):
    table = "name,r,g,b\nbackground,0,0,0\nroof,128,0,0\nvoid,9,9,9\ntree,0,128,64\n"
    folder_of(tmp_path / "set", [(0, 1, 3), (0, 1, 2)], table, "class_dict.csv")
    _, source = found(tmp_path / "set", monkeypatch)
    assert names(source) == ["background", "roof", "tree"]
    assert not errors(check(source))


def test_a_list_without_the_background_is_cured_by_a_line_for_it(tmp_path, monkeypatch):
    folder_of(tmp_path / "set", [(0, 1, 2)], "cat\ndog\n", "names.txt")
    _, source = found(tmp_path / "set", monkeypatch)
    assert "or a line `background` at the beginning, if 0 is that" in remarks_of(source)
    assert "names.txt" in remarks_of(source)


def test_a_list_of_files_is_no_class_list_and_labelme_s_ignore_is_no_class(tmp_path, monkeypatch):
    folder_of(tmp_path / "a/set", [(0, 1, 2)], "0.png\n1.png\n", "labels.txt")
    _, source = found(tmp_path / "a/set", monkeypatch)
    assert names(source) == ["background", "class-1", "class-2"]
    folder_of(tmp_path / "b/set", [(0, 1, 2)], "__ignore__\n_background_\ncat\ndog\n", "labels.txt")
    one, source = found(tmp_path / "b/set", monkeypatch)
    assert names(source) == ["_background_", "cat", "dog"]
    assert one.has_background
    folder_of(tmp_path / "c/set", [(0, 1, 2)], "Pixel Value, Class\n0, background\n1, cat\n2, dog\n", "_classes.csv")
    _, source = found(tmp_path / "c/set", monkeypatch)
    assert names(source) == ["background", "cat", "dog"]


COLOUR, GREY, NUMBERS = COLOURS, [(v, v, v) for v in (0, 1, 2, 255)], (0, 1, 2)


def test_few_masks_of_another_kind_are_problems_and_make_no_classes(tmp_path, monkeypatch):
    folder_of(tmp_path / "a/set", [*[NUMBERS] * (COUNT - 2), COLOUR, GREY])
    _, source = found(tmp_path / "a/set", monkeypatch)
    assert names(source) == ["background", "class-1", "class-2"]
    assert sum("not one class number a pixel" in problem.what for problem in check(source)) == 2
    folder_of(tmp_path / "b/set", [*[COLOUR] * (COUNT - 1), NUMBERS])
    _, source = found(tmp_path / "b/set", monkeypatch)
    assert names(source) == ["background", "colour-008040", "colour-800000"]
    assert sum("colours that no class has" in problem.what for problem in check(source)) == 1
    folder_of(tmp_path / "c/set", [COLOUR, NUMBERS])
    with pytest.raises(InputError, match="6 masks hold colours, and 6 class numbers"):
        discover(tmp_path / "c/set", "auto")


def test_a_value_far_from_all_others_in_a_mask_is_a_problem_and_no_class(tmp_path, monkeypatch):
    for k in range(3 * COUNT):
        image(tmp_path / f"set/images/{k}.jpg")
        mask(tmp_path / f"set/masks/{k}.png", [0, 1, 77] if k == 5 else [0, 1, 2, 255])
    _, source = found(tmp_path / "set", monkeypatch)
    assert names(source) == ["background", "class-1", "class-2"]
    assert "the mask holds the values 77" in remarks_of(source)


def test_class_numbers_in_three_equal_channels_keep_their_void(tmp_path, monkeypatch):
    folder_of(tmp_path / "a/set", [GREY])
    _, source = found(tmp_path / "a/set", monkeypatch)
    assert names(source) == ["background", "class-1", "class-2"]
    assert not errors(check(source))
    folder_of(tmp_path / "b/set", [(0, 128), (0, 255), (0, 128, 255)])
    _, source = found(tmp_path / "b/set", monkeypatch)
    assert names(source) == ["background", "colour-808080", "colour-ffffff"]
    assert not errors(check(source))
    folder_of(tmp_path / "c/set", [[*COLOURS, (224, 224, 192)]])
    one, source = found(tmp_path / "c/set", monkeypatch)
    assert names(source) == ["background", "colour-008040", "colour-800000"]
    assert "void" in one.said[1]


def test_masks_that_say_nothing_are_refused_in_a_sentence_that_says_why(tmp_path):
    folder_of(tmp_path / "white", [(255,)])
    with pytest.raises(InputError, match="all masks are white"):
        discover(tmp_path / "white", "auto")
    folder_of(tmp_path / "alpha", [[(0, 0, 0, 0), (0, 0, 0, 255)]])
    with pytest.raises(InputError, match="alpha channel"):
        discover(tmp_path / "alpha", "auto")
    for k in range(COUNT):
        image(tmp_path / f"minus/images/{k}.png")
        (tmp_path / "minus/masks").mkdir(exist_ok=True)
        Image.fromarray(np.repeat(np.arange(-1, 3, dtype=np.int32), 500).reshape(40, 50)).save(
            tmp_path / f"minus/masks/{k}.tif"
        )
    with pytest.raises(InputError, match=r"masks hold values from -1 to 2.*255"):
        discover(tmp_path / "minus", "auto")


def test_files_that_cannot_be_used_are_not_also_called_missing(tmp_path, monkeypatch):
    folder_of(tmp_path / "set", [NUMBERS])
    for path in (tmp_path / "set/images").iterdir():
        path.write_bytes(b"no image")
    _, source = found(tmp_path / "set", monkeypatch)
    assert len(remarks_of(source).splitlines()) == 1


def test_a_remark_on_many_classes_is_not_a_screen_of_names(tmp_path, monkeypatch):
    folder_of(tmp_path / "set", [(0, 1)], "".join(f"class number {k}\n" for k in range(150)))
    _, source = found(tmp_path / "set", monkeypatch)
    (remark,) = [problem.what for problem in check(source) if "no training pixel" in problem.what]
    assert len(remark) < 300
    assert remark.endswith("and 136 more")


def set_of(root: Path, *layouts: tuple[str, list], count: int = COUNT) -> None:
    """Write images (no values) and masks by the patterns of their names."""
    for pattern, values in layouts:
        for k in range(count):
            path = root / pattern.format(f"{k:02d}")
            mask(path, values) if values else image(path)


def masks_of(source: Source) -> set[str]:
    return {str(Path(sample.mask).parent) for sample in source.samples}


def test_blue_is_a_colour_and_not_void(tmp_path, monkeypatch):
    potsdam = [(255, 255, 255), (0, 0, 255), (0, 255, 255), (0, 255, 0), (255, 255, 0), (255, 0, 0)]
    set_of(tmp_path / "set", ("images/{}.tif", []), ("labels/{}.tif", potsdam))
    _, source = found(tmp_path / "set", monkeypatch)
    assert "colour-0000ff" in names(source)
    assert not errors(check(source))


BLACK_AND_WHITE = [0, 255]


def test_manual_segmentations_are_taken_and_not_where_the_camera_sees(tmp_path, monkeypatch):
    drive = tmp_path / "a/set/DRIVE"
    for split in ("training", "test"):
        set_of(drive, (f"{split}/images/{{}}_{split}.tif", []), (f"{split}/mask/{{}}_{split}_mask.gif", [0, 255]))
    set_of(drive, ("training/1st_manual/{}_manual1.gif", [0, 1]), ("training/2nd_manual/{}_manual2.gif", [0, 1]))
    one, source = found(tmp_path / "a/set", monkeypatch)
    assert masks_of(source) == {"data/DRIVE/training/1st_manual"}
    assert len(source.samples) == COUNT
    assert f"{2 * COUNT} of: the mask is a field of view" in summary(one.problems)
    set_of(tmp_path / "b/set", ("images/{}_dr.jpg", []), ("manual1/{}_dr.tif", [0, 255]), ("mask/{}_dr_mask.tif", [0]))
    assert masks_of(found(tmp_path / "b/set", monkeypatch)[1]) == {"data/manual1"}


def test_images_of_test_get_no_masks_of_train(tmp_path, monkeypatch):
    kitti = (("training/image_2/{}.png", []), ("training/semantic/{}.png", [0, 1]), ("testing/image_2/{}.png", []))
    set_of(tmp_path / "set", *kitti, ("training/semantic_rgb/{}.png", COLOURS))
    one, source = found(tmp_path / "set", monkeypatch)
    assert masks_of(source) == {"data/training/semantic"}
    assert f"{COUNT} of: the image has no mask" in summary(one.problems)


def test_pictures_of_the_same_scenes_and_heights_are_not_paired_with_other_labels(tmp_path, monkeypatch):
    rgb = (("2_RGB/top_{}_RGB.tif", []), ("5_Labels/top_{}_label.tif", COLOURS))
    others = (("3_IRRG/top_{}_IRRG.tif", []), ("5_Labels_noBoundary/top_{}_label_noBoundary.tif", COLOURS))
    set_of(tmp_path / "set", *rgb, *others)
    for k in range(COUNT):
        (tmp_path / "set/1_DSM").mkdir(exist_ok=True)
        Image.fromarray(np.full((40, 50), 30.5, np.float32)).save(tmp_path / f"set/1_DSM/dsm_{k:02d}.tif")
    _, source = found(tmp_path / "set", monkeypatch)
    assert masks_of(source) == {"data/5_Labels"}
    assert len(source.samples) == COUNT


def test_a_set_that_is_there_in_two_formats_is_read_once(tmp_path, monkeypatch):
    for form in ("TIF", "PNG"):
        set_of(tmp_path / "set", (f"{form}/Original/{{}}.png", []), (f"{form}/Ground Truth/{{}}.png", BLACK_AND_WHITE))
    one, source = found(tmp_path / "set", monkeypatch)
    assert masks_of(source) == {"data/PNG/Ground Truth"}
    assert f"{2 * COUNT} of: the same lies in PNG/" in summary(one.problems)
    set_of(tmp_path / "b/set", ("jpg/{}.jpg", []), ("png/{}.png", BLACK_AND_WHITE))
    assert masks_of(found(tmp_path / "b/set", monkeypatch)[1]) == {"data/png"}


@pytest.mark.parametrize("name", ["{}.png", "{}_1stHO.png", "{}_anno.bmp", "{}_lbl.png", "{}_manual1.tif"])
def test_masks_lie_beside_images_under_more_names(name, tmp_path, monkeypatch):
    set_of(tmp_path / "set", ("{}.jpg", []), (name, BLACK_AND_WHITE))
    assert len(found(tmp_path / "set", monkeypatch)[1].samples) == COUNT


def test_drawings_for_people_are_neither_images_nor_masks(tmp_path, monkeypatch):
    drawn = ("SegmentationClassVisualization/{}.jpg", [])
    set_of(tmp_path / "a/set", ("JPEGImages/{}.jpg", []), ("SegmentationClassPNG/{}.png", [0, 1]), drawn)
    assert masks_of(found(tmp_path / "a/set", monkeypatch)[1]) == {"data/SegmentationClassPNG"}
    set_of(tmp_path / "b/set", ("img/{}.jpg", []), ("masks_machine/{}.png", [0, 1]), ("masks_human/{}.png", []))
    assert masks_of(found(tmp_path / "b/set", monkeypatch)[1]) == {"data/masks_machine"}


SPLITS = [("train2017", "val2017"), ("DUTS-TR", "DUTS-TE"), ("traincrop", "valcrop"), ("TrainDataset", "TestDataset")]


@pytest.mark.parametrize(("train", "val"), SPLITS)
def test_splits_are_parts_of_words_too(train, val, tmp_path, monkeypatch):
    for folder in (train, val):
        set_of(tmp_path / "set", (f"images/{folder}/{{}}.jpg", []), (f"masks/{folder}/{{}}.png", [0, 1]))
    _, source = found(tmp_path / "set", monkeypatch)
    assert {(sample.split, Path(sample.image).parts[-2]) for sample in source.samples} == {
        ("train", train),
        ("val", val),
    }


def test_some_of_many_class_numbers_keep_their_void(tmp_path, monkeypatch):
    set_of(tmp_path / "set", ("images/{}.jpg", []), ("masks/{}.png", [*range(0, 180, 18), 255]))
    one, source = found(tmp_path / "set", monkeypatch)
    assert len(source.classes) == 10
    assert one.said[1].endswith("255 as void; 0 is taken for the background, unless a classes.txt says otherwise")
    assert not errors(check(source))


def test_the_lists_of_ade20k_and_coco_stuff_fit_their_masks(tmp_path, monkeypatch):
    set_of(tmp_path / "a/set", ("images/{}.jpg", []), ("annotations/{}.png", [0, 1, 2]))
    ade = "Idx\tRatio\tTrain\tVal\tStuff\tName\n1\t0.2\t9\t9\t1\twall\n2\t0.1\t9\t9\t1\tbuilding, edifice\n"
    (tmp_path / "a/set/objectInfo150.txt").write_text(ade)
    one, source = found(tmp_path / "a/set", monkeypatch)
    assert names(source) == ["wall", "building"]
    assert not one.has_background
    set_of(tmp_path / "b/set", ("images/{}.jpg", []), ("pixelmaps/{}.png", [0, 1, 255]))
    coco = ["unlabeled", "person", "bicycle", *(f"stuff-{k}" for k in range(3, 183))]
    (tmp_path / "b/set/labels.txt").write_text("".join(f"{k}: {name}\n" for k, name in enumerate(coco)))
    _, source = found(tmp_path / "b/set", monkeypatch)
    assert names(source)[:2] == ["person", "bicycle"]


def test_too_few_pairs_are_answered_by_what_is_there(tmp_path):
    set_of(tmp_path / "few", ("images/{}.jpg", []), ("masks/{}.png", [0, 1]), count=7)
    with pytest.raises(InputError, match=r"7 images with a mask .* add images with their masks"):
        discover(tmp_path / "few", "auto")
    set_of(tmp_path / "objects", ("{}/images/a.png", []), *((f"{{}}/masks/m{k}.png", [0, 255]) for k in range(4)))
    with pytest.raises(InputError, match="unite those of an image"):
        discover(tmp_path / "objects", "auto")
    set_of(tmp_path / "phone", ("masks/{}.png", [0, 1]))
    (tmp_path / "phone/a.heic").write_bytes(b"x")
    with pytest.raises(InputError, match=r"another format, such as a\.heic"):
        discover(tmp_path / "phone", "auto")


def test_strange_values_are_one_kind_however_many_a_mask_has(tmp_path, monkeypatch):
    set_of(tmp_path / "set", ("images/{}.jpg", []), ("masks/{}.png", [0, 1]))
    for k in range(6):
        mask(tmp_path / f"set/masks/{k:02d}.png", [0, *range(40, 41 + k)])
    (tmp_path / "set/classes.txt").write_text("a\nb\n")
    _, source = found(tmp_path / "set", monkeypatch)
    assert len(summary(errors(check(source))).splitlines()) == 1
