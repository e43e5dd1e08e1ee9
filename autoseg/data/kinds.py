"""The kinds of data sets. A kind is one class: its docstring is the help, its fields are the options, `find` reads.

`autoseg prepare KIND`, `autoseg doctor KIND` and `datasets.<name>.options` of a config are all made from these classes.
A new kind is one class here and a reader beside this file. A reader is imported when its data are looked for, so that
a config is read without numpy and image libraries.
"""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field

from autoseg.errors import unknown
from autoseg.files import Part

if TYPE_CHECKING:
    from autoseg.data.source import Source


class Kind(Part):
    """The options of one data set, and the facts about its kind.

    The word in `Annotated[str, "DIR"]` names the value in the help of the command line.
    """

    model_config = ConfigDict(strict=True)  # the text "12" is not accepted as a number

    HOLD_OUT: ClassVar[int | float] = 0.2  # held out for the search: a number of images, or a share of them
    HAS_BACKGROUND: ClassVar[bool] = True  # whether class 0 is a background, not a class like any other

    leave_out_copies: bool = Field(
        default=False,
        description="leave out training images that are copies of validation or test images, instead of refusing",
    )

    @classmethod
    def help(cls) -> str:
        """Return the line of `autoseg prepare --help`."""
        return (cls.__doc__ or "").removesuffix(".")

    @classmethod
    def own_options(cls) -> list[str]:
        """Return the names of the options that not every kind has."""
        return [name for name in cls.model_fields if name not in Kind.model_fields]

    @abstractmethod
    def find(self, made: Path, threads: int = 1) -> Source:
        """Return the data set; a kind that makes its images puts them into the folder `made`."""

    @abstractmethod
    def count(self, split: Literal["train", "val"]) -> int:
        """Return the number of training or validation images; no image is read."""


class OnDisk(Kind):
    """A data set that lies on disk."""

    root: Annotated[str, "DIR"] = Field(description="folder of the data set")

    @abstractmethod
    def find(self, made: Path | None = None, threads: int = 1) -> Source:
        """Return the data set as it lies on disk; no image is read."""

    def count(self, split: Literal["train", "val"]) -> int:
        """Return the number of images that are found."""
        return sum(sample.split == split for sample in self.find().samples)


class Voc(OnDisk):
    """PASCAL VOC 2012 with SBD (mmseg's, torchvision's or the converted layout)."""

    HOLD_OUT = 1500  # as in the paper

    sbd: Annotated[str | None, "DIR"] = Field(
        default=None, description="folder of SBD (default: looked for beside VOC); 'none' leaves it out"
    )

    def find(self, made: Path | None = None, threads: int = 1) -> Source:
        """Find VOC and SBD."""
        from autoseg.data import voc

        return voc.find(self.root, self.sbd)


class Cityscapes(OnDisk):
    """Cityscapes (labelIds or labelTrainIds)."""

    HOLD_OUT = 500  # as in the paper
    HAS_BACKGROUND = False  # class 0 is road

    labels: Literal["labelIds", "labelTrainIds"] | None = Field(
        default=None, description="labelIds or labelTrainIds (default: labelIds, if there are any)"
    )

    def find(self, made: Path | None = None, threads: int = 1) -> Source:
        """Find images and masks."""
        from autoseg.data import cityscapes

        return cityscapes.find(self.root, self.labels)


class Pets(OnDisk):
    """Oxford-IIIT Pet (trimaps: background, cat and dog, or 37 breeds)."""

    task: Literal["species", "breed"] = Field(
        default="species",
        description="species: background, cat, dog; breed: background and 37 breeds; borders are void",
    )

    def find(self, made: Path | None = None, threads: int = 1) -> Source:
        """Find images and trimaps."""
        from autoseg.data import pets

        return pets.find(self.root, self.task)


class OwnFolder(OnDisk):
    """Your own: images and masks in folders or lists, and a class list."""

    classes: Annotated[str, "FILE"] = Field(
        description="list of classes, one a line: a name, or 'name R G B' for colour-coded masks; 'void' is not "
        "counted; or camvid: its 11 classes"
    )
    split: Annotated[dict[str, str], "NAME=PLACE"] = Field(
        default={},
        description="folders of a split, as IMAGES,MASKS; or with a list of names, as IMAGES,MASKS,LIST; or only a "
        "LIST of 'image mask' lines; all relative to the root (default: found by their names)",
    )
    mask_suffix: Annotated[str, "TEXT"] = Field(
        default="", description="text after the image's name in the name of its mask: _L for a.png and a_L.png"
    )

    binary: bool = Field(
        default=False,
        description="masks are black and white, JPEG too: a pixel brighter than half is of the second class",
    )

    def find(self, made: Path | None = None, threads: int = 1) -> Source:
        """Find images and masks."""
        from autoseg.data import folder

        return folder.find(self.root, self.classes, self.split, self.mask_suffix, self.binary)


class Synthetic(Kind):
    """Made-up scenes, no download (the demo's data set)."""

    train: Annotated[int, "N"] = Field(default=200, ge=1, description="training images")
    val: Annotated[int, "N"] = Field(default=50, ge=1, description="validation images")
    size: Annotated[int, "PX"] = Field(default=128, ge=32, description="height and width")
    seed: Annotated[int, "N"] = Field(default=0, ge=0, description="seed of the scenes")

    def find(self, made: Path, threads: int = 1) -> Source:
        """Draw the scenes that are not in the folder yet."""
        from autoseg.data import synthetic

        return synthetic.find(made, self.train, self.val, self.size, self.seed, threads)

    def count(self, split: Literal["train", "val"]) -> int:
        """Return the number of images that will be drawn."""
        return self.train if split == "train" else self.val


KINDS: dict[str, type[Kind]] = {
    "voc": Voc,
    "cityscapes": Cityscapes,
    "pets": Pets,
    "folder": OwnFolder,
    "synthetic": Synthetic,
}

# For the help of options that name a hold-out.
USUAL_HOLD_OUTS = ", ".join(
    [f"{name} {kind.HOLD_OUT}" for name, kind in KINDS.items() if kind.HOLD_OUT != Kind.HOLD_OUT]
    + [f"others {Kind.HOLD_OUT}"]
)


def kind_of(name: str) -> type[Kind]:
    """Return a kind by its name.

    >>> kind_of("citiscapes")
    Traceback (most recent call last):
    autoseg.errors.InputError: unknown kind 'citiscapes'; did you mean 'cityscapes'? Expected one of cityscapes, ...
    """
    if name not in KINDS:
        raise unknown("kind", name, KINDS)
    return KINDS[name]
