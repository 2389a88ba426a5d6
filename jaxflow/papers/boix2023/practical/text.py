"""Text: the standard library's own documentation topics, and files of the user's."""

import hashlib
import sys
from pathlib import Path

import numpy as np

from jaxflow._core import require

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
