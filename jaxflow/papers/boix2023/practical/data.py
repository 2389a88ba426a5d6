"""Digits of scikit-learn and help topics of the standard library; the paper's images and texts from local files."""

import hashlib
import pickle
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxflow._core import require


class ImageSet(NamedTuple):
    """`images` `(n, s, s, c)` with entries in [0, 1]; `labels` `(n,)`, integers below `classes`."""

    images: np.ndarray
    labels: np.ndarray
    classes: int


def digits() -> ImageSet:
    """1,797 handwritten digits of 8 × 8 pixels. **Raises:** `ValueError` without scikit-learn."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ValueError("data: digits come with scikit-learn; install jaxflow-bias[practical]") from error
    # As an ordinary dictionary: the library's own type of it is not known to type checkers.
    found: Any = load_digits()
    return ImageSet(found["images"][..., None] / 16.0, found["target"], 10)


def cifar(folder: Path | str, classes: int = 10) -> ImageSet:
    """The training images of CIFAR-10 or CIFAR-100 in their published Python format.

    **Arguments:** `folder`: holds `cifar-10-batches-py` or `cifar-100-python`, or is it. The files are pickles:
    use only what you trust.

    **Raises:** `ValueError` saying which file is missing.
    """
    require(classes in (10, 100), "classes", f"expected 10 or 100, got {classes}")
    name = "cifar-10-batches-py" if classes == 10 else "cifar-100-python"
    files = [f"data_batch_{i}" for i in range(1, 6)] if classes == 10 else ["train"]
    base = Path(folder)
    require(base.is_dir(), "folder", f"{base} is missing; download the data set there first")
    base = base / name if (base / name).is_dir() else base
    images, labels = [], []
    for file in files:
        path = base / file
        require(path.is_file(), "folder", f"{path} is missing; CIFAR-{classes} in Python format belongs there")
        with path.open("rb") as stream:
            batch = pickle.load(stream, encoding="bytes")
        images.append(np.asarray(batch[b"data"]).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1) / 255.0)
        labels.append(np.asarray(batch[b"labels" if classes == 10 else b"fine_labels"]))
    return ImageSet(np.concatenate(images), np.concatenate(labels), classes)


def image_folder(folder: Path | str, side: int = 224, limit: int | None = None) -> ImageSet:
    """One subfolder for each class (as ImageNet's `train`), images scaled and cropped to squares.

    **Arguments:** `limit`: images of each class, all by default. All are held in memory.

    **Raises:** `ValueError` for a folder that is missing or holds no images.
    """
    from matplotlib.image import imread

    base = Path(folder)
    require(
        base.is_dir(), "folder", f"{base} is missing; ImageNet's training folder, one subfolder a class, goes there"
    )
    kinds = sorted(path for path in base.iterdir() if path.is_dir())
    images, labels = [], []
    for label, kind in enumerate(kinds):
        found = sorted(path for path in kind.iterdir() if path.suffix.lower() in (".jpeg", ".jpg", ".png"))
        for path in found[:limit]:
            images.append(_square(np.asarray(imread(path), dtype=float), side))
            labels.append(label)
    require(bool(images), "folder", f"{base} holds no .jpeg, .jpg or .png in subfolders")
    return ImageSet(np.stack(images), np.asarray(labels), len(kinds))


def _square(image: np.ndarray, side: int) -> np.ndarray:
    """The middle square at the nearest pixels, in [0, 1], with three channels."""
    image = image / 255.0 if image.max() > 1.0 else image
    image = np.repeat(image[..., None], 3, axis=2) if image.ndim == 2 else image[..., :3]
    short = min(image.shape[:2])
    top, left = ((size - short) // 2 for size in image.shape[:2])
    pick = (np.arange(side) + 0.5) * short / side
    return image[top + pick.astype(int)[:, None], left + pick.astype(int)[None, :]]


# SHA-256 of the topics, sorted and joined, by version of Python: another version has another text.
PINS = {"3.11.7": "71f2ff5d99bdc1f9c48c5c2353ad138201c5ca1c377e0226857ef8fa89b8bcee"}


def library_text(any_version: bool = False) -> tuple[np.ndarray, int]:
    """English prose that every Python brings along: the help topics of `pydoc`, as bytes.

    **Arguments:** `any_version`: accept the text of a Python whose hash is not pinned; results then differ.

    **Returns:** tokens `(n,)` and the size of the vocabulary.

    **Raises:** `ValueError` for a text that is not the pinned one.
    """
    from pydoc_data import topics

    text = "\n\n".join(topics.topics[name] for name in sorted(topics.topics))
    digest = hashlib.sha256(text.encode()).hexdigest()
    version = ".".join(map(str, sys.version_info[:3]))
    require(
        any_version or digest in PINS.values(),
        "any_version",
        f"the help topics of Python {version} (SHA-256 {digest[:12]}...) are not pinned; pass any_version=True "
        "to use them all the same",
    )
    return _tokens(text)


def local_text(file: Path | str) -> tuple[np.ndarray, int]:
    """A text file of the user's, as bytes: `wiki.train.tokens` of Wikitext-103, say.

    **Raises:** `ValueError` if it is missing.
    """
    path = Path(file)
    require(path.is_file(), "file", f"{path} is missing; Wikitext-103's wiki.train.tokens, say, goes there")
    return _tokens(path.read_text(encoding="utf-8"))


def _tokens(text: str) -> tuple[np.ndarray, int]:
    values, tokens = np.unique(np.frombuffer(text.encode(), np.uint8), return_inverse=True)
    return tokens, len(values)
