"""Every break seen in the wild is caught by `doctor` and by `prepare`, with its file name and a cure."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil

import cv2
import numpy as np
import pytest
from data_trees import (
    LABEL_IDS,
    PALETTE,
    blocks,
    camvid_tree,
    cityscapes_tree,
    color_tree,
    picture,
    save_jpeg,
    save_list,
    save_png,
    save_sbd_mat,
    voc_tree,
)
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from scipy.io import savemat

from autoseg.data import cityscapes, folder, voc
from autoseg.data.check import check
from autoseg.data.model import MaskValues
from autoseg.data.prepare import prepare
from autoseg.data.reading import Unreadable, decode_image, decode_mask
from autoseg.data.source import plain_values
from autoseg.errors import InputError, errors, warnings
from tests.refusals import refused

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def expand_palette(path):
    with Image.open(path) as image:
        rgb = image.convert("RGB")
    rgb.save(path)


def to_luminance(path):
    with Image.open(path) as image:
        grey = image.convert("L")
    grey.save(path)


def resave(mode):
    def change(path):
        with Image.open(path) as image:
            changed = image.convert(mode)
        changed.save(path, format="TIFF" if mode == "F" else None)

    return change


def as_format(name, **options):
    """Store the values of a mask as a picture of another format, under the old name."""

    def change(path):
        with Image.open(path) as image:
            values = np.array(image)
        Image.fromarray(np.minimum(values, 20)).save(path, format=name, **options)

    return change


def requantize(path):
    with Image.open(path) as image:
        rgb = image.convert("RGB")
    rgb.convert("P", palette=Image.Palette.ADAPTIVE).save(path)


def zero_tail(path):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 3 // 4].ljust(len(content), b"\0"))


def sixteen_bit_colors(path):
    path.write_bytes(cv2.imencode(".png", np.full((40, 60, 3), 40_000, np.uint16))[1].tobytes())


def sixteen_bits(path):
    Image.fromarray(np.full((40, 60), 40_000, np.uint16)).save(path, format="PNG")


MASK, IMAGE, MAT = (
    "SegmentationClass/2007_000032.png",
    "JPEGImages/2008_000002.jpg",
    "VOCaug/dataset/cls/2008_000007.mat",
)
BREAKS = {
    "RGB-expanded palette": (MASK, expand_palette, "palette was expanded"),
    "palette turned into luminance": (MASK, to_luminance, "the mask holds the values"),
    "truncated image": (IMAGE, truncate, "truncated"),
    "truncated mask": (MASK, truncate, "(truncated|broken)"),
    "truncated MATLAB file": (MAT, truncate, "truncated"),
    "LFS pointer for an image": (IMAGE, lambda p: p.write_bytes(LFS), "Git LFS pointer.*git lfs pull"),
    "LFS pointer for a mask": (MASK, lambda p: p.write_bytes(LFS), "Git LFS pointer"),
    "LFS pointer for a MATLAB file": (MAT, lambda p: p.write_bytes(LFS), "Git LFS pointer"),
    "web page": (IMAGE, lambda p: p.write_bytes(b"<!DOCTYPE html><p>404"), "web page"),
    "text": (IMAGE, lambda p: p.write_bytes(b"hello, I am not an image"), "not an image"),
    "empty file": (IMAGE, lambda p: p.write_bytes(b""), "empty"),
    "missing image": (IMAGE, lambda p: p.unlink(), "missing"),
    "missing mask": (MASK, lambda p: p.unlink(), "missing"),
    "missing MATLAB file": (MAT, lambda p: p.unlink(), "missing"),
    "folder in place of a file": (IMAGE, lambda p: (p.unlink(), p.mkdir()), "cannot be read"),
    "wrong label": (MASK, lambda p: save_png(p, blocks((0, 21, 77))), "values 21, 77; expected 0-20 and 255"),
    "size mismatch": (MASK, lambda p: save_png(p, blocks((0, 1), 60, 40)), "the mask is 40x60, its image .* is 60x40"),
    "instance map": (MASK, sixteen_bits, "values up to 40000"),
    "CMYK image": (IMAGE, resave("CMYK"), "CMYK.*convert it to RGB"),
    "16-bit image": (IMAGE, sixteen_bits, "more than 8 bits"),
    "16-bit colour image": (IMAGE, sixteen_bit_colors, "more than 8 bits"),
    "JPEG whose tail was never written": (IMAGE, zero_tail, "truncated"),
    "mask stored as JPEG": (MASK, as_format("JPEG", quality=100), "stored as JPEG, which blurs labels"),
    "mask stored as lossy WebP": (MASK, as_format("WEBP", quality=100), "(stored as WEBP|palette was expanded)"),
    "mask stored as JPEG within TIFF": (MASK, as_format("TIFF", compression="jpeg"), "stored as TIFF"),
    "re-ordered palette": (MASK, requantize, "was re-ordered"),
    "MATLAB file of instances": (MAT, lambda p: savemat(p, {"GTinst": np.ones((2, 2))}), "no 'GTcls'.*`cls`"),
    "MATLAB file of fractions": (MAT, lambda p: savemat(p, {"GTcls": {"Segmentation": [[0.5]]}}), "other numbers"),
    "flipped bytes in a mask": (
        MASK,
        lambda p: p.write_bytes(p.read_bytes()[:60] + b"\0" * 40 + p.read_bytes()[100:]),
        "(broken|not a mask)",
    ),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_break_is_caught_with_its_file_and_a_cure(tmp_path, name):
    where, damage, message = BREAKS[name]
    voc_tree(tmp_path / "sets")
    (path,) = (tmp_path / "sets").rglob(where)
    damage(path)
    (problem,) = errors(check(voc.find(tmp_path / "sets")))
    assert problem.where == str(path)
    assert len(problem.cure) > 5
    with pytest.raises(InputError, match=f"(?s)1 problem in.*{path.name}: .*{message}"):
        prepare(voc.find(tmp_path / "sets"), tmp_path / "out")
    assert not (tmp_path / "out" / "index.json").exists()


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    root = voc_tree(tmp_path_factory.mktemp("voc"))
    paths = [next(root.rglob(name)) for name in (IMAGE, MASK, MAT)]
    save_sbd_mat(root / "uncompressed.mat", blocks((0, 20, 7), void=False), compress=False)
    return [path.read_bytes() for path in [*paths, root / "uncompressed.mat"]]


ENCODINGS = (None, "index", "sbd", "sbd")


@given(data=st.data(), which=st.integers(0, 3))
def test_whatever_bytes_a_file_holds_it_is_read_or_called_unreadable(originals, data, which):
    content = bytearray(originals[which])
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = bytes(content[: data.draw(st.integers(1, len(content)))])
    try:
        if which == 0:
            assert decode_image(content).shape[2] == 3
        else:
            assert decode_mask(content, ENCODINGS[which], MaskValues(values=plain_values(21))).ndim == 2
    except Unreadable:
        pass  # as it should be: nothing else may come out


def test_damage_to_any_byte_of_a_matlab_file_never_crashes(originals):
    # Uncompressed, nothing guards the lengths: scipy's reader dies of them with a bus error.
    rng = np.random.default_rng(0)
    head = np.arange(128, 800)  # where tags and sizes lie; the rest is labels
    for original in originals[2:]:
        for _ in range(3000):
            content = bytearray(original)
            for place in rng.choice(head[head < len(content)], rng.integers(1, 5)):
                content[place] = rng.integers(0, 256)
            with contextlib.suppress(Unreadable):
                decode_mask(bytes(content), "sbd", MaskValues(values=plain_values(21)))


@pytest.mark.parametrize("dtype", ["u1", "i2", "f8", ">u2"])
@pytest.mark.parametrize("compress", [True, False])
def test_matlab_masks_are_read_whatever_type_they_are_stored_as(tmp_path, dtype, compress):
    mask = blocks((0, 20, 7), 11, 13, void=False)
    save_sbd_mat(tmp_path / "a.mat", mask.astype(dtype), compress)
    read = decode_mask((tmp_path / "a.mat").read_bytes(), "sbd", MaskValues(values=plain_values(21)))
    np.testing.assert_array_equal(read, mask)


def test_doctor_lists_all_problems_at_once(tmp_path):
    voc_tree(tmp_path)
    paths = []
    for name in ("truncated image", "RGB-expanded palette", "LFS pointer for a MATLAB file"):
        where, damage, _ = BREAKS[name]
        (path,) = tmp_path.rglob(where)
        damage(path)
        paths.append(str(path))
    found = errors(check(voc.find(tmp_path)))
    assert [problem.where for problem in found] == sorted(paths)


def test_train_ids_that_are_label_ids_are_told_apart(tmp_path):
    cityscapes_tree(tmp_path / "a", "labelTrainIds")
    wrong = next((tmp_path / "a").rglob("bremen*labelTrainIds.png"))
    save_png(wrong, blocks(LABEL_IDS, 64, 128))
    (problem,) = errors(check(cityscapes.find(tmp_path / "a")))
    assert problem.where == str(wrong)
    assert "look like labelIds" in problem.cure
    cityscapes_tree(tmp_path / "b", "labelIds")
    wrong = next((tmp_path / "b").rglob("bremen*labelIds.png"))
    save_png(wrong, blocks((255, 0, 1, 18), 64, 128))
    (problem,) = errors(check(cityscapes.find(tmp_path / "b")))
    assert problem.where == str(wrong)
    assert "look like labelTrainIds" in problem.cure


def test_cityscapes_masks_without_images_and_images_without_masks(tmp_path):
    cityscapes_tree(tmp_path)
    (tmp_path / "leftImg8bit/train/aachen/aachen_000000_000019_leftImg8bit.png").unlink()
    (tmp_path / "gtFine/val/lindau/lindau_000000_000019_gtFine_labelIds.png").unlink()
    found = errors(check(cityscapes.find(tmp_path)))
    assert [(problem.where.rpartition("/")[2], problem.what) for problem in found] == [
        ("aachen_000000_000019_gtFine_labelIds.png", "the mask has no image"),
        ("lindau_000000_000019_gtFine_labelIds.png", "the file is missing"),
    ]


def test_a_set_that_is_not_complete_is_remarked_upon(tmp_path):
    found = [problem.what for problem in warnings(check(cityscapes.find(cityscapes_tree(tmp_path / "c"))))]
    assert "train has 3 images, the published set 2,975" in found
    assert "val has 2 images, the published set 500" in found
    found = [problem.what for problem in warnings(check(voc.find(voc_tree(tmp_path / "v"))))]
    assert "train has 4 images, the published set 10,582" in found


def test_a_city_in_both_splits_is_a_leak(tmp_path):
    cityscapes_tree(tmp_path)
    for part in ("leftImg8bit", "gtFine"):
        shutil.copytree(tmp_path / part / "val/lindau", tmp_path / part / "train/lindau")
    found = errors(check(cityscapes.find(tmp_path)))
    assert len(found) == 2
    assert all("in both train and val" in problem.what for problem in found)


def test_voc_lists_that_overlap_are_a_leak(tmp_path):
    voc_tree(tmp_path)
    lists = tmp_path / "VOCdevkit/VOC2012/ImageSets/Segmentation"
    save_list(lists / "train.txt", [*(lists / "train.txt").read_text().split(), "2008_000001"])
    (problem,) = errors(check(voc.find(tmp_path)))
    assert problem.where.endswith("JPEGImages/2008_000001.jpg")
    assert "both VOC's train.txt and val.txt" in problem.what


def test_a_trainaug_list_with_val_images_and_a_repeated_id_are_remarked_upon(tmp_path):
    voc_tree(tmp_path)
    lists = tmp_path / "VOCdevkit/VOC2012/ImageSets/Segmentation"
    save_list(lists / "trainaug.txt", ["2007_000032", "2008_000001"])
    save_list(lists / "train.txt", ["2007_000032", "2007_000039", "2007_000039"])
    found = voc.find(tmp_path)
    remarks = {problem.where.rpartition("/")[2]: problem.what for problem in warnings(check(found))}
    assert remarks["trainaug.txt"] == "1 images of val.txt are in it, such as '2008_000001'"
    assert remarks["train.txt"] == "'2007_000039' is listed twice"
    assert "2008_000001" not in prepare(found, tmp_path / "out").ids("train")


def test_a_val_image_copied_into_train_is_a_leak_that_can_be_left_out(tmp_path, caplog):
    caplog.set_level(logging.INFO, "autoseg")
    root = camvid_tree(tmp_path / "set")
    for part in ("", "annot"):
        shutil.copy(root / f"val{part}/0001TP_val_00001.png", root / f"train{part}/harmless.png")
    found = folder.find(root, root / "classes.txt")
    (problem,) = errors(check(found))
    assert problem.where.endswith("train/harmless.png")
    assert "val/0001TP_val_00001.png in val" in problem.what
    with pytest.raises(InputError, match=r"harmless.png.*--leave-out-copies"):
        prepare(found, tmp_path / "out")
    shutil.copy(root / "val/0001TP_val_00001.png", root / "test/0001TP_test_00000.png")
    assert [p.severity for p in check(folder.find(root, root / "classes.txt")) if "test_00000" in p.where] == [
        "warning"
    ]
    data = prepare(found, tmp_path / "out", leave_out_copies=True)
    assert len(data.ids("train")) == 4
    assert "train/harmless" not in data.ids("train")
    assert any("train/harmless" in line for line in caplog.messages)


def test_a_copy_stored_in_another_format_is_a_leak_too(tmp_path):
    root = camvid_tree(tmp_path / "set")
    with Image.open(root / "val/0001TP_val_00001.png") as image:
        image.save(root / "train/harmless.bmp")
    shutil.copy(root / "valannot/0001TP_val_00001.png", root / "trainannot/harmless.png")
    found = folder.find(root, root / "classes.txt")
    (problem,) = errors(check(found))
    assert problem.where.endswith("train/harmless.bmp")
    data = prepare(found, tmp_path / "out", leave_out_copies=True)
    assert "train/harmless" not in data.ids("train")


def test_a_training_set_of_nothing_but_copies_is_refused(tmp_path):
    root = camvid_tree(tmp_path / "set", counts=(1, 2, 1))
    shutil.copy(root / "val/0001TP_val_00001.png", root / "train/0001TP_train_00000.png")
    with pytest.raises(InputError, match="no image in train"):
        prepare(folder.find(root, root / "classes.txt"), tmp_path / "out", leave_out_copies=True)


def test_folders_report_missing_partners_and_repeated_names(tmp_path):
    root = camvid_tree(tmp_path)
    (root / "trainannot/0001TP_train_00000.png").unlink()
    (root / "val/0001TP_val_00000.png").unlink()
    save_jpeg(root / "train/0001TP_train_00001.jpg", picture("other", 36, 48))
    found = {
        problem.where.removeprefix(f"{root}/"): problem.what
        for problem in errors(check(folder.find(root, root / "classes.txt")))
    }
    assert "the image has no mask" in found.pop("train/0001TP_train_00000.png")
    assert found.pop("valannot/0001TP_val_00000.png") == "the mask has no image"
    assert "0001TP_train_00001.jpg has it too" in found.pop("train/0001TP_train_00001.png")
    assert found == {}


def test_a_list_with_a_wrong_line_or_a_repeated_image_is_named_by_line(tmp_path):
    root = camvid_tree(tmp_path)
    pair = "train/0001TP_train_00000.png trainannot/0001TP_train_00000.png"
    save_list(root / "train.txt", [pair, "train/0001TP_train_00001.png", pair])
    save_list(root / "val.txt", [pair])
    found = errors(check(folder.find(root, root / "classes.txt", {"train": "train.txt", "val": "val.txt"})))
    assert [problem.where.rpartition("/")[2] for problem in found] == [
        "train.txt:2",
        "0001TP_train_00000.png",
        "0001TP_train_00000.png",
    ]
    assert "twice in train" in found[2].what
    assert "in both train and val" in found[1].what


def test_a_list_that_leaves_the_root_or_has_spaces_is_named_by_line(tmp_path):
    root = camvid_tree(tmp_path / "set")
    pair = "train/0001TP_train_00000.png trainannot/0001TP_train_00000.png"
    save_list(root / "train.txt", [pair, f"../set/{pair}", "my image.png my mask.png"])
    save_list(root / "val.txt", [pair.replace("train", "val")])
    found = errors(folder.find(root, root / "classes.txt", {"train": "train.txt", "val": "val.txt"}).problems)
    assert [problem.where.rpartition("/")[2] for problem in found] == ["train.txt:2", "train.txt:3"]
    assert "leaves the root" in found[0].what
    assert "tab or comma" in found[1].cure


def test_names_that_are_not_utf_8_are_problems(tmp_path):
    root = camvid_tree(tmp_path / "set")
    strange = os.fsencode(root / "train") + b"/b\xe4r.png"
    os.rename(root / "train/0001TP_train_00000.png", strange)
    found = errors(folder.find(root, root / "classes.txt").problems)
    assert f"{root}/train/b\\xe4r.png: the file's name is not UTF-8; rename the file." in map(str, found)
    other = os.fsdecode(os.fsencode(tmp_path) + b"/b\xe4r")
    shutil.copytree(root, other)
    with refused(what="UTF-8"):
        folder.find(other, root / "classes.txt")


def test_a_mask_that_fits_its_image_only_when_turned_is_told_of_the_exif_rotation(tmp_path):
    root = camvid_tree(tmp_path)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(picture("x", 48, 36)).save(root / "train/0001TP_train_00002.png", exif=exif)
    (problem,) = errors(check(folder.find(root, root / "classes.txt")))
    assert problem.where.endswith("trainannot/0001TP_train_00002.png")
    assert "the image has an EXIF rotation" in problem.what
    assert "save the image rotated" in problem.cure


def test_a_folder_set_of_19_classes_gets_no_cure_of_cityscapes(tmp_path):
    root = camvid_tree(tmp_path)
    save_list(root / "classes.txt", [f"class-{number}" for number in range(19)])
    save_png(root / "trainannot/0001TP_train_00000.png", blocks((0, 25), 36, 48))
    (problem,) = errors(check(folder.find(root, root / "classes.txt")))
    assert "check the class list" in problem.cure


def test_a_colour_no_class_has_is_named(tmp_path):
    root = color_tree(tmp_path)
    path = root / "labels/train/train1.png"
    save_png(path, np.full((40, 60, 3), (1, 2, 3), np.uint8))
    (problem,) = errors(check(folder.find(root, root / "class_dict.csv")))
    assert problem.where == str(path)
    assert "#010203" in problem.what


def test_two_class_masks_of_0_and_255_are_noticed(tmp_path):
    for split in ("train", "val"):
        save_jpeg(tmp_path / split / "a.jpg", picture(split))
        save_png(tmp_path / f"{split}annot/a.png", blocks((0, 255)))
    save_list(tmp_path / "classes.txt", ["ground", "figure"])
    (problem,) = errors(check(folder.find(tmp_path, tmp_path / "classes.txt")))
    assert "only ['ground'] occur in train" in problem.what
    assert "0 and 1" in problem.what


@pytest.mark.parametrize(
    ("make", "remark"),
    [
        (lambda path: save_png(path, picture("x", 36, 48)[..., 0]), "greyscale"),
        (lambda path: save_png(path, np.dstack([picture("x", 36, 48), np.full((36, 48), 9, np.uint8)])), "alpha"),
        (lambda path: save_png(path, picture("x", 36, 48)[..., 0], PALETTE), None),
    ],
)
def test_unusual_images_are_used_and_remarked_upon(tmp_path, make, remark):
    root = camvid_tree(tmp_path / "set")
    path = root / "train/0001TP_train_00002.png"
    make(path)
    found = folder.find(root, root / "classes.txt")
    remarks = [p for p in warnings(check(found)) if p.where == str(path)]
    assert errors(check(found)) == []
    assert [remark in problem.what for problem in remarks] == ([True] if remark else [])
    assert prepare(found, tmp_path / "out").read("train/0001TP_train_00002")[0].shape == (36, 48, 3)


def test_an_exif_rotation_is_remarked_upon(tmp_path):
    root = camvid_tree(tmp_path)
    path = root / "train/0001TP_train_00002.png"
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(picture("x", 36, 48)).save(path, exif=exif)
    assert [
        "EXIF" in p.what for p in warnings(check(folder.find(root, root / "classes.txt"))) if p.where == str(path)
    ] == [True]


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "empty"), (b"\n \n", "empty"), ("2007_000032\nbär\n".encode("latin-1"), "line 2 is not UTF-8")],
)
def test_a_bad_list_is_refused_with_its_name(tmp_path, content, message):
    voc_tree(tmp_path)
    (tmp_path / "VOCdevkit/VOC2012/ImageSets/Segmentation/train.txt").write_bytes(content)
    (problem,) = errors(check(voc.find(tmp_path)))
    assert problem.where.endswith("train.txt")
    assert message in problem.what
    with pytest.raises(InputError, match=f"train.txt: .*{message}"):
        prepare(voc.find(tmp_path), tmp_path / "out")


def test_a_list_with_windows_ends_and_a_byte_order_mark_is_fine(tmp_path):
    voc_tree(tmp_path)
    path = tmp_path / "VOCdevkit/VOC2012/ImageSets/Segmentation/train.txt"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert len(voc.find(tmp_path).samples) == 6


@pytest.mark.parametrize(
    ("find", "message"),
    [
        (lambda root: voc.find(root / "nowhere"), "nowhere: the folder does not exist"),
        (lambda root: voc.find(root), "no VOC2012/ImageSets/Segmentation"),
        (lambda root: cityscapes.find(root), "the folder does not exist"),
        (lambda root: folder.find(root, root / "classes.txt"), "no known layout"),
        (lambda root: folder.find(root, root / "none.txt"), "none.txt: the list cannot be read"),
        (lambda root: folder.find(root, root / "classes.txt", {"train": "a,b"}), "no split 'val'"),
        (
            lambda root: folder.find(root, root / "classes.txt", {"train": "a,b", "val": "a,b"}),
            "a: the folder does not exist",
        ),
        (
            lambda root: folder.find(root, root / "classes.txt", {"train": "t.txt", "val": "v.txt"}),
            "t.txt: the list cannot be",
        ),
    ],
)
def test_a_wrong_place_is_refused_in_a_sentence(tmp_path, find, message):
    save_list(tmp_path / "classes.txt", ["a", "b"])
    with pytest.raises(InputError, match=message):
        prepare(find(tmp_path), tmp_path / "out")
    assert not (tmp_path / "out").exists()
