"""Read one image or mask strictly: a file that is not exactly right raises `Unreadable` with the cause and the cure."""

from __future__ import annotations

import hashlib
import io
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from autoseg.data import mat
from autoseg.data.model import VOID, MaskValues
from autoseg.errors import InputError, Problem
from autoseg.files import refuse_pipe

# Pillow warns of large images, which are read like any other, and refuses those over twice its limit.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)

Array = NDArray[np.uint8]

_AGAIN = "download or copy the file again"
_EXIF_ORIENTATION = 0x0112
_LOSSLESS = ("PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")  # formats a mask may have; two of them only in one form


class Unreadable(Exception):
    """A file that cannot be used: what was found, what to do, and the values of a mask that have no meaning."""

    def __init__(self, what: str, cure: str = _AGAIN, values: Sequence[int] = (), expected: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.cure = cure
        self.values = values
        self.expected = expected

    def at(self, path: Path) -> Problem:
        """Return it as a problem of the file."""
        return Problem(str(path), self.what, self.cure, expected=self.expected)


@dataclass(frozen=True)
class Header:
    """What the first bytes of an image file say."""

    height: int
    width: int
    mode: str


LARGEST = 1 << 30
"""The greatest size of an image's or a mask's file, in bytes."""


def read_bytes(path: Path, limit: int = LARGEST + 1) -> bytes:
    """Return a file's bytes (the first `limit`); a missing, empty, endless or pointer file is unreadable."""
    try:
        refuse_pipe(path)
        with open(path, "rb") as file:
            content = file.read(limit)
    except InputError as error:
        raise Unreadable(error.what, error.cure) from None
    except FileNotFoundError:
        raise Unreadable("the file is missing", "put it there, or take its name off the list") from None
    except OSError as error:
        raise Unreadable(f"the file cannot be read ({error.strerror})", "check its permissions and the disk") from None
    if not content:
        raise Unreadable("the file is empty")
    if len(content) > LARGEST:
        raise Unreadable("the file is too large", "cut the image into tiles", expected=f"{LARGEST >> 30} GiB at most")
    if content.startswith(b"version https://git-lfs"):
        raise Unreadable(
            "this is a Git LFS pointer, not the file itself", "run `git lfs pull` where the data came from"
        )
    if content[:64].lstrip().lower().startswith((b"<!doctype", b"<html")):
        raise Unreadable("this is a web page, not an image (a failed download?)")
    return content


def read_header(path: Path) -> Header:
    """Return size and mode of an image file without decoding it."""
    read_bytes(path, limit=64)
    with _decoding("an image"), Image.open(path) as image:
        return Header(image.height, image.width, image.mode)


def remarks(content: bytes) -> list[str]:
    """Return what is unusual about an image file that is used all the same."""
    with _decoding("an image"), Image.open(io.BytesIO(content)) as image:
        found = []
        if image.mode in ("L", "LA", "1"):
            found.append("the image is greyscale; it is used as three equal channels")
        if image.mode in ("RGBA", "LA", "PA"):
            found.append("the image has an alpha channel; it is dropped")
        if _is_rotated(image):
            found.append("the image has an EXIF rotation; it is used as stored, unrotated")
        return found


def has_rotation(path: Path) -> bool:
    """Return whether an image file asks to be shown rotated."""
    with _decoding("an image"), Image.open(path) as image:
        return _is_rotated(image)


def _is_rotated(image: Image.Image) -> bool:
    return image.getexif().get(_EXIF_ORIENTATION, 1) != 1


def decode_image(content: bytes) -> Array:
    """Return (H, W, 3) RGB from a file's bytes."""
    _require_whole_picture(content)
    with _decoding("an image"), Image.open(io.BytesIO(content)) as image:
        if image.mode == "CMYK":
            raise Unreadable("the image is CMYK, whose colours depend on the print profile", "convert it to RGB")
        _require_eight_bits(image, "image")
        return np.array(image.convert("RGB"))


def decode_mask(content: bytes, encoding: str, labels: MaskValues) -> Array:
    """Return (H, W) class numbers and void from a mask file's bytes; an unknown value or colour is unreadable."""
    drawn: list[int] | None = None
    if encoding == "sbd":
        raw = _decode_mat(content)
    else:
        _require_whole_picture(content)
        with _decoding("a mask"), Image.open(io.BytesIO(content)) as image:
            if encoding == "binary":
                _require_eight_bits(image, "mask")
                return _from_black_and_white(np.array(image.convert("L")))
            _require_lossless(image, content)
            if encoding == "color":
                _require_eight_bits(image, "mask")
                return _from_colors(np.array(image.convert("RGB")), _color_table(tuple(labels.colors.items())))
            raw = _indices(image)
            if image.mode == "P" and labels.colors:
                drawn = [*(image.getpalette() or []), *[0] * 768]
    values = labels.values
    if encoding.startswith("trimap:"):
        values = {**values, 1: int(encoding.removeprefix("trimap:"))}
    table, known = _value_table(tuple(values.items()))
    present = np.bincount(raw.ravel(), minlength=256) > 0
    if (strange := np.flatnonzero(present & ~known)).size:
        raise _strange_values(strange.tolist(), labels)
    if drawn is not None:
        _require_palette(drawn, np.flatnonzero(present).tolist(), labels)
    return table[raw]


def sha256(content: bytes | memoryview) -> str:
    """Return the checksum of bytes as 64 hex digits."""
    return hashlib.sha256(content).hexdigest()


def pixel_checksum(image: Array) -> str:
    """Return the checksum of a decoded image: the same for a copy in another format or with other metadata."""
    return sha256(str(image.shape).encode() + image.tobytes())


class _decoding:
    """Turn any error of a decoder into `Unreadable`: Pillow's plugins raise errors of many classes on broken bytes."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None or isinstance(error, Unreadable) or not isinstance(error, Exception):
            return
        if "truncated" in str(error).lower():
            raise Unreadable(f"the file is truncated ({error})") from None
        if isinstance(error, Image.UnidentifiedImageError):
            raise Unreadable(f"the file is not {self.what} of any known format") from None
        if isinstance(error, Image.DecompressionBombError):
            raise Unreadable(f"the image is too large ({error})", "cut it into tiles") from None
        raise Unreadable(f"the file is broken ({type(error).__name__}: {error})") from None


def _require_whole_picture(content: bytes) -> None:
    """Refuse PostScript, which is a program, and a PNG or JPEG without its last bytes, which decoders fill in."""
    if content.startswith((b"%!PS", b"\xc5\xd0\xd3\xc6")):  # Pillow would start Ghostscript
        raise Unreadable("the file is PostScript, a program and not a picture", "store it as PNG")
    if content.startswith(b"\x89PNG\r\n\x1a\n"):
        place, kind = 8, b""
        while kind != b"IEND":
            length = int.from_bytes(content[place : place + 4])
            kind, end = content[place + 4 : place + 8], place + length + 12
            if end > len(content):
                raise Unreadable("the file is truncated (its last chunk is not whole)")
            place = end
    elif content.startswith(b"\xff\xd8") and content.rfind(b"\xff\xd9") < content.rfind(b"\xff\xda"):
        raise Unreadable("the file is truncated (the marker of its end is missing)")


def _require_eight_bits(image: Image.Image, what: str) -> None:
    # Pillow drops the lower half of 16-bit colours without a warning; only its description of the stored data shows it.
    if image.mode.startswith(("I", "F")) or ";16" in str(getattr(image, "tile", "")):
        raise Unreadable(f"the {what} has more than 8 bits a channel (mode {image.mode})", "convert it to 8 bits")


def _require_lossless(image: Image.Image, content: bytes) -> None:
    lossy = (
        image.format not in _LOSSLESS
        or (image.format == "WEBP" and b"VP8L" not in content)
        or (image.format == "TIFF" and image.info.get("compression") == "jpeg")
    )
    if lossy:
        raise Unreadable(
            f"the mask is stored as {image.format}, which blurs labels at their borders",
            "take the original mask and store it as PNG; what was lost cannot be restored",
        )


def _require_palette(drawn: list[int], present: list[int], labels: MaskValues) -> None:
    """Refuse a palette that was re-ordered, such as by quantising colours: its numbers are no longer class numbers."""
    for value in present:
        color = "#{:02x}{:02x}{:02x}".format(*drawn[3 * value : 3 * value + 3])
        if value != VOID and labels.colors.get(color) != labels.values[value]:
            raise Unreadable(
                f"the palette draws the value {value} as {color}, which is not its class's colour: it was re-ordered",
                "take the palette PNG from the original archive, or save the class numbers as greyscale",
            )


def _indices(image: Image.Image) -> Array:
    if image.mode in ("P", "L", "1"):
        return np.array(image).astype(np.uint8)
    if image.mode.startswith("I"):
        raw = np.array(image)
        if raw.min() < 0 or raw.max() > VOID:
            raise Unreadable(
                f"the mask holds values up to {raw.max()} (mode {image.mode})",
                "it looks like an instance or depth map; give the class mask, one byte a pixel",
            )
        return raw.astype(np.uint8)
    raise Unreadable(
        f"the mask is {image.mode}, not one class number a pixel: its palette was expanded to colours",
        "take the palette PNG from the original archive, or use the `folder` kind with a class list that has colours",
    )


def _decode_mat(content: bytes) -> Array:
    with _decoding("a MATLAB file"):
        try:
            raw = mat.read_field(content, "GTcls", "Segmentation")
        except KeyError as error:
            raise Unreadable(f"the MATLAB file has no {error}", "take the folder `cls` of SBD, not `inst`") from None
        if raw.ndim != 2 or not raw.size:
            raise Unreadable(f"'GTcls' holds a segmentation of shape {raw.shape}, not a picture")
        with np.errstate(invalid="ignore"):
            labels = np.clip(raw, 0, VOID).astype(np.uint8)
        if not (labels == raw).all():
            raise Unreadable("'GTcls' holds a segmentation of other numbers than 0 to 255")
        return np.ascontiguousarray(labels)


@lru_cache
def _value_table(values: tuple[tuple[int, int], ...]) -> tuple[Array, NDArray[np.bool_]]:
    table = np.full(256, VOID, np.uint8)
    known = np.zeros(256, bool)
    for raw, label in values:
        table[raw], known[raw] = label, True
    return table, known


@lru_cache
def _color_table(colors: tuple[tuple[str, int], ...]) -> tuple[NDArray[np.int32], Array]:
    pairs = sorted((int(color[1:], 16), label) for color, label in colors)
    return np.array([code for code, _ in pairs], np.int32), np.array([label for _, label in pairs], np.uint8)


def _from_colors(rgb: Array, table: tuple[NDArray[np.int32], Array]) -> Array:
    codes, classes = table
    code = rgb @ np.array([1 << 16, 1 << 8, 1], np.int32)
    place = np.minimum(np.searchsorted(codes, code), len(codes) - 1)
    wrong = codes[place] != code
    if wrong.any():
        strange, counts = np.unique(code[wrong], return_counts=True)
        common = strange[np.argmax(counts)]
        raise Unreadable(
            f"{wrong.sum()} pixels have colours that no class has ({len(strange)} in all, most often #{common:06x})",
            "add the colour to the class list (as `void` if it counts nowhere), and store masks as PNG, never JPEG",
        )
    return classes[place]


GREY = 0.05
"""The greatest share of a black-and-white mask's pixels that may be neither, as JPEG and smoothing leave them."""


def _from_black_and_white(grey: Array) -> Array:
    """Return class 1 where a mask is brighter than half; JPEG's noise does not reach that far."""
    between = float(((grey > 64) & (grey < 192)).mean())
    if between > GREY:
        raise Unreadable(
            f"{100 * between:.1f} % of the mask's pixels are grey, neither black nor white",
            "save smoothed masks as pure black and white; if grey is a class, name its value or colour in a class list",
        )
    return (grey > 127).astype(np.uint8)


def _strange_values(strange: list[int], labels: MaskValues) -> Unreadable:
    shown = ", ".join(map(str, strange[:8])) + (", ..." if len(strange) > 8 else "")
    legal = sorted(raw for raw in labels.values if raw != VOID)
    expected = f"{legal[0]}-{legal[-1]}" + (f" and {VOID} (void)" if VOID in labels.values else "")
    what = f"the mask holds the values {shown}"
    cure = "check the class list, and that the mask was not saved through a colour or greyscale conversion"
    return Unreadable(what, cure, strange, expected)
