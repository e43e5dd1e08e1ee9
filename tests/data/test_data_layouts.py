"""Each real layout is found as it lies on disk: ids, label values, void, class names and counts."""

from __future__ import annotations

import numpy as np
import pytest
from data_trees import (
    CAMVID,
    SBD_TRAIN,
    TRAIN_IDS,
    TRAINAUG,
    VOC_TRAIN,
    VOC_VAL,
    blocks,
    camvid_tree,
    cityscapes_tree,
    color_tree,
    picture,
    save_jpeg,
    save_list,
    save_png,
    voc_tree,
)

from autoseg.data import cityscapes, folder, voc
from autoseg.data.prepare import prepare
from autoseg.errors import InputError
from tests.refusals import refused


@pytest.mark.parametrize("layout", ["mmseg", "torchvision", "converted"])
def test_voc_trainaug_is_built_the_same_from_every_layout_of_sbd(tmp_path, layout):
    data = prepare(voc.find(voc_tree(tmp_path / "sets", layout)), tmp_path / "out")
    assert data.ids("train") == TRAINAUG
    assert data.ids("val") == sorted(VOC_VAL)
    assert data.num_classes == 21
    assert data.class_names[:2] == ["background", "aeroplane"]
    assert data.class_names[-1] == "tvmonitor"
    for name in VOC_TRAIN:  # VOC's own mask wins, with its void borders
        np.testing.assert_array_equal(data.read(name)[1], blocks((0, 15, 0, 1)))
    for name in set(TRAINAUG) - set(VOC_TRAIN):
        np.testing.assert_array_equal(data.read(name)[1], blocks((0, 20, 7), void=False))
    entry = data.entry("2007_000032")
    assert entry.pixels == {0: 29 * 40, 15: 14 * 40, 1: 14 * 40, 255: 3 * 40}
    assert (entry.height, entry.width) == (40, 60)
    pixels = [entry.pixels for entry in data.index.splits["train"]]
    assert sum(20 in counts for counts in pixels) == 2
    assert sum(counts.get(7, 0) for counts in pixels) == 2 * 40 * 20
    assert sum(counts.get(255, 0) for counts in pixels) == 2 * 120


@pytest.mark.parametrize("place", ["", "VOCdevkit", "VOCdevkit/VOC2012"])
def test_voc_is_found_from_any_of_its_folders(tmp_path, place):
    voc_tree(tmp_path)
    assert len(voc.find(tmp_path / place).samples) == 6


def test_voc_without_sbd_must_be_asked_for(tmp_path):
    voc_tree(tmp_path, sbd=None)
    with pytest.raises(InputError) as error:
        voc.find(tmp_path)
    assert "--sbd none" in error.value.cure
    found = voc.find(tmp_path, sbd="none")
    assert [sample.id for sample in found.samples if sample.split == "train"] == VOC_TRAIN


def test_an_empty_or_partial_folder_of_converted_masks_does_not_hide_sbd(tmp_path):
    voc_tree(tmp_path, sbd="mmseg")
    converted = tmp_path / "VOCdevkit/VOC2012/SegmentationClassAug"
    converted.mkdir()
    (converted / "readme.txt").write_text("to be filled")
    plain = voc.find(tmp_path)
    assert [sample.id for sample in plain.samples if sample.split == "train"] == TRAINAUG
    assert not [problem for problem in plain.problems if "converted" in problem.what]
    save_png(converted / "2008_000002.png", blocks((0, 1)))
    partial = voc.find(tmp_path)
    assert partial.samples == plain.samples
    (remark,) = [problem for problem in partial.problems if "converted" in problem.what]
    assert "VOCaug/dataset is used" in remark.cure
    voc_tree(tmp_path, sbd="converted")
    both = voc.find(tmp_path)
    assert {sample.encoding for sample in both.samples} == {"index"}
    (remark,) = [problem for problem in both.problems if "converted" in problem.what]
    assert "SegmentationClassAug is used" in remark.cure


def test_an_empty_folder_of_converted_masks_alone_is_refused(tmp_path):
    voc_tree(tmp_path, sbd=None)
    (tmp_path / "VOCdevkit/VOC2012/SegmentationClassAug").mkdir()
    with pytest.raises(InputError) as error:
        voc.find(tmp_path)
    assert error.value.what.endswith("SegmentationClassAug (it is empty)")


def test_voc_alone_is_compared_with_its_own_published_count(tmp_path):
    found = voc.find(voc_tree(tmp_path, sbd=None), sbd="none")
    assert next(problem.what for problem in found.problems) == "train has 2 images, the published set 1,464"


def test_sbd_elsewhere_is_named_and_its_images_serve_where_voc_has_none(tmp_path):
    voc_tree(tmp_path / "a", sbd=None)
    voc_tree(tmp_path / "b", sbd="torchvision")
    (tmp_path / "a/VOCdevkit/VOC2012/JPEGImages" / f"{SBD_TRAIN[0]}.jpg").unlink()
    found = voc.find(tmp_path / "a", tmp_path / "b/sbd")
    images = {sample.id: sample.image for sample in found.samples}
    assert images[SBD_TRAIN[0]] == f"sbd/img/{SBD_TRAIN[0]}.jpg"
    assert images["2008_000007"] == "voc/JPEGImages/2008_000007.jpg"


def test_the_counts_of_the_real_voc_lists_give_10582(tmp_path):
    # Lists of the real sizes: 1,464 and 1,449 of VOC, 8,498 and 2,857 of SBD.
    base, sbd = tmp_path / "VOC2012", tmp_path / "sbd"
    names = [f"{number:06d}" for number in range(2913 + 9118)]
    train, val = names[:1464], names[1464:2913]
    listed = [*names[2913:], *train[:1112], *val[:1125]]
    assert len(listed) == 8498 + 2857
    for name, content in (("train", train), ("val", val)):
        save_list(base / f"ImageSets/Segmentation/{name}.txt", content)
    (sbd / "cls").mkdir(parents=True)
    save_list(sbd / "train.txt", listed[:8498])
    save_list(sbd / "val.txt", listed[8498:])
    found = voc.find(tmp_path, sbd)
    ids = [sample.id for sample in found.samples if sample.split == "train"]
    assert len(ids) == 10_582
    assert ids == sorted(ids)
    assert not set(ids) & set(val)
    assert found.problems == []


@pytest.mark.parametrize("labels", ["labelIds", "labelTrainIds"])
def test_cityscapes_label_ids_are_mapped_as_they_are_read(tmp_path, labels):
    data = prepare(cityscapes.find(cityscapes_tree(tmp_path / "sets", labels)), tmp_path / "out")
    assert data.ids("train") == ["aachen_000000_000019", "aachen_000001_000019", "bremen_000000_000019"]
    assert data.ids("val") == ["lindau_000000_000019", "lindau_000001_000019"]
    assert data.num_classes == 19
    assert (data.class_names[0], data.class_names[13], data.class_names[18]) == ("road", "car", "bicycle")
    np.testing.assert_array_equal(data.read("lindau_000001_000019")[1], blocks(TRAIN_IDS, 64, 128, void=False))
    assert [entry.pixels[255] for entry in data.index.splits["val"]] == [64 * 30] * 2


def test_all_34_cityscapes_label_ids_have_a_meaning():
    kept = [7, 8, 11, 12, 13, 17, *range(19, 29), 31, 32, 33]
    assert {**dict.fromkeys(range(34), 255), **{raw: n for n, raw in enumerate(kept)}} == cityscapes._LABEL_IDS


def test_camvid_works_as_it_is(tmp_path):
    root = camvid_tree(tmp_path / "CamVid")
    data = prepare(folder.find(root, root / "classes.txt"), tmp_path / "out")
    assert {split: len(entries) for split, entries in data.index.splits.items()} == {"train": 4, "val": 2, "test": 2}
    assert data.class_names == CAMVID[:-1]
    assert set(np.unique(data.read("train/0001TP_train_00000")[1])) == {0, 3, 10, 255}


def test_links_are_followed_but_not_in_circles_and_hidden_files_are_passed_over(tmp_path):
    root = camvid_tree(tmp_path / "CamVid")
    for part in ("train", "trainannot"):
        (root / part).rename(tmp_path / part)
        (root / part).mkdir()
        (root / part / "seq").symlink_to(tmp_path / part)
        (root / part / "seq/self").symlink_to(tmp_path / part)
        (root / part / "seq/._0001TP_train_00000.png").write_bytes(b"\0\5\x16\7")
    data = prepare(folder.find(root, root / "classes.txt"), tmp_path / "out")
    assert data.ids("train") == [f"train/seq/0001TP_train_{number:05d}" for number in range(4)]


def test_macos_s_hidden_files_are_passed_over_everywhere(tmp_path):
    city, devkit = cityscapes_tree(tmp_path / "city"), voc_tree(tmp_path / "voc", "converted")
    before = len(cityscapes.find(city).samples), len(voc.find(devkit).samples)
    for path in [*city.rglob("*.png"), *devkit.rglob("*Aug/*.png")]:
        path.with_name(f"._{path.name}").write_bytes(b"\0\5\x16\7")
    assert (len(cityscapes.find(city).samples), len(voc.find(devkit).samples)) == before
    assert not [problem for problem in cityscapes.find(city).problems if problem.severity == "error"]


def test_places_may_be_given_through_a_linked_root_but_not_outside_it(tmp_path):
    root = camvid_tree(tmp_path / "CamVid")
    (tmp_path / "link").symlink_to(root)
    for base in (root, tmp_path / "link"):
        places = {split: f"{base}/{split},{base}/{split}annot" for split in ("train", "val")}
        found = folder.find(tmp_path / "link", root / "classes.txt", places)
        assert found.samples[0].image == "data/train/0001TP_train_00000.png"
    for place in ("../CamVid/train,trainannot", "/etc,trainannot"):
        with refused(cure="--root") as error:
            folder.find(root, root / "classes.txt", {"train": place, "val": "val,valannot"})
        assert error.value.where == "split train"
    with pytest.raises(InputError) as error:
        folder.find(root, root / "classes.txt", {"train": "train,trainannot,a,b", "val": "val,valannot"})
    assert error.value.where == "split train"
    assert error.value.expected == "IMAGES,MASKS or IMAGES,MASKS,LIST or LIST"


def test_camvid_lists_that_begin_with_another_root_are_understood(tmp_path):
    root = camvid_tree(tmp_path / "CamVid")
    for split in ("train", "val"):
        names = [f"0001TP_{split}_{number:05d}.png" for number in range(2)]
        save_list(root / f"{split}.txt", [f"/SegNet/CamVid/{split}/{n} /SegNet/CamVid/{split}annot/{n}" for n in names])
    found = folder.find(root, root / "classes.txt", {"train": "train.txt", "val": "val.txt"})
    assert [sample.id for sample in found.samples if sample.split == "train"] == [
        "train/0001TP_train_00000",
        "train/0001TP_train_00001",
    ]
    assert prepare(found, tmp_path / "out").num_classes == 11


def test_colour_coded_masks_are_read_by_the_class_list(tmp_path):
    root = color_tree(tmp_path / "set")
    data = prepare(folder.find(root, root / "class_dict.csv"), tmp_path / "out")
    assert data.class_names == ["sky", "road", "car"]
    assert data.index.classes[2].color == (64, 0, 128)
    _, mask = data.read("images/train/train0")
    assert mask[0, ::15].tolist() == [0, 1, 2, 255]
    assert data.entry("images/train/train0").pixels == {0: 600, 1: 600, 2: 600, 255: 600}


def test_any_folders_may_be_named_and_masks_may_have_a_suffix(tmp_path):
    for split in ("train", "val"):
        for number in range(2):
            save_jpeg(tmp_path / "pics" / split / f"sub/{number}.JPG", picture(f"{split}{number}"))
            save_png(tmp_path / "gt" / split / f"sub/{number}_L.png", blocks((0, 1)))
    save_list(tmp_path / "classes.txt", ["a", "b"])
    places = {split: f"pics/{split},gt/{split}" for split in ("train", "val")}
    found = folder.find(tmp_path, tmp_path / "classes.txt", places, mask_suffix="_L")
    assert found.problems == []
    assert [sample.id for sample in found.samples] == [
        f"pics/{split}/sub/{number}" for split in ("train", "val") for number in range(2)
    ]


def test_lists_of_names_choose_from_common_folders(tmp_path):
    for number in range(5):
        save_jpeg(tmp_path / f"pics/{number}.jpg", picture(str(number)))
        save_png(tmp_path / f"gt/{number}.png", blocks((0, 1)))
    save_list(tmp_path / "classes.txt", ["a", "b"])
    save_list(tmp_path / "train.txt", ["0", "3.jpg", "9"])
    save_list(tmp_path / "val.txt", ["1", "2"])
    places = {"train": f"pics,{tmp_path}/gt/,train.txt", "val": "pics/, gt, val.txt"}
    found = folder.find(tmp_path, tmp_path / "classes.txt", places)
    assert [(sample.id, sample.mask) for sample in found.samples] == [
        (f"pics/{number}", f"data/gt/{number}.png") for number in (0, 3, 1, 2)
    ]
    (problem,) = found.problems
    assert problem.where == str(tmp_path / "pics/9")
    assert "listed, but missing" in problem.what
    save_list(tmp_path / "val.txt", ["1", "3"])
    assert [
        "in both train and val" in p.what for p in folder.find(tmp_path, tmp_path / "classes.txt", places).problems
    ] == [
        False,
        True,
    ]
    with refused(what="'/elsewhere'", cure="--root"):
        folder.find(tmp_path, tmp_path / "classes.txt", {"train": "/elsewhere,gt", "val": "pics,gt"})


@pytest.mark.parametrize(
    ("lines", "names", "values"),
    [
        (["a", "b b", "c"], ["a", "b b", "c"], {0: 0, 1: 1, 2: 2, 255: 255}),
        (["void", "a", "Void", "b"], ["a", "b"], {0: 255, 1: 0, 2: 255, 3: 1, 255: 255}),
        (["# my classes", "a", "", "class 2"], ["a", "class 2"], {0: 0, 1: 1, 255: 255}),
        (["0 a", "1: b", "2,c"], ["a", "b", "c"], {0: 0, 1: 1, 2: 2, 255: 255}),
        (["id,name", "0,a", "1,void", "2,b"], ["a", "b"], {0: 0, 1: 255, 2: 1, 255: 255}),
        (["name", "a", "2 wheeler"], ["a", "2 wheeler"], {0: 0, 1: 1, 255: 255}),
    ],
)
def test_a_class_list_numbers_its_lines(tmp_path, lines, names, values):
    save_list(tmp_path / "classes.txt", lines)
    classes, labels, encoding = folder.read_classes(tmp_path / "classes.txt")
    assert [info.name for info in classes] == names
    assert labels.values == values
    assert encoding == "index"


@pytest.mark.parametrize(
    "line",
    [
        *("traffic light 1 2 3", "1 2 3\ttraffic light", "traffic light,1,2,3", "traffic light; 1; 2; 3"),
        *("traffic light #010203", "#010203 traffic light", "traffic light,#010203"),
    ],
)
def test_a_class_list_takes_colours_on_either_side(tmp_path, line):
    save_list(tmp_path / "classes.txt", [line, "b 4 5 6"])
    classes, labels, encoding = folder.read_classes(tmp_path / "classes.txt")
    assert classes[0].name == "traffic light"
    assert labels.colors == {"#010203": 0, "#040506": 1}
    assert encoding == "color"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["a"], "1 classes"),
        (["a", "a"], "'a' is named twice"),
        (["a 1 2 3", "b"], "'b' has no colour"),
        (["a 1 2 3", "b 1 2 3"], "colour #010203"),
        (["a 1 2 300", "b 1 2 3"], "above 255"),
        (["1 a", "2 b"], "numbered, but not 0, 1, 2"),
        (["a 1 2 3 255", "b 4 5 6 255"], "more than three numbers"),
        (["a,1,2,3,255", "b,4,5,6,255"], "'a,1,2,3,255' is not understood"),
        (["a,0", "b,1"], "'a,0' is not understood"),
        (["a: 0", "b: 1"], "'a: 0' is not understood"),
        (["a 0.1 0.2 0.3", "b 0 0 0.5"], "'a 0.1 0.2 0.3' is not understood"),
        (["a", *["void"] * 300, "b"], "'void' would be the value 256"),
        ([f"c{n}" for n in range(300)], "300 classes"),
    ],
)
def test_a_bad_class_list_is_refused_with_its_name(tmp_path, lines, message):
    save_list(tmp_path / "classes.txt", lines)
    with pytest.raises(InputError) as error:
        folder.read_classes(tmp_path / "classes.txt")
    assert error.value.where == str(tmp_path / "classes.txt")
    assert message in error.value.what


def test_camvids_classes_are_built_in_and_11_is_void(tmp_path):
    root = camvid_tree(tmp_path / "set")
    built_in = prepare(folder.find(root, "camvid"), tmp_path / "a")
    listed = prepare(folder.find(root, root / "classes.txt"), tmp_path / "b")
    assert [name.replace(" ", "") for name in built_in.class_names] == listed.class_names == CAMVID[:-1]
    for name in built_in.ids("train"):
        np.testing.assert_array_equal(built_in.read(name)[1], listed.read(name)[1])
        np.testing.assert_array_equal(built_in.read(name)[1], blocks((0, 3, 10, 255), 36, 48, void=False))


def test_camvid_with_coloured_masks_is_read_by_its_own_list(tmp_path):
    color_tree(tmp_path)
    for split in ("train", "val"):
        (tmp_path / "images" / split).rename(tmp_path / split)
        (tmp_path / "labels" / split).rename(tmp_path / f"{split}_labels")
        for path in (tmp_path / f"{split}_labels").iterdir():
            path.rename(path.with_name(f"{path.stem}_L.png"))
    found = folder.find(tmp_path, tmp_path / "class_dict.csv", mask_suffix="_L")
    assert [(sample.split, sample.encoding) for sample in found.samples] == [("train", "color")] * 3 + [
        ("val", "color")
    ] * 2
    with refused(what="use the `folder` kind with a class list that has colours"):
        prepare(folder.find(tmp_path, "camvid", mask_suffix="_L"), tmp_path / "out")
