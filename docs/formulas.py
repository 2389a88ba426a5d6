"""MkDocs hook: formulas become MathML while the pages are built, and no built page loads anything from elsewhere.

Browsers draw MathML themselves. A formula that the converter does not know, and a script, a stylesheet or a font with
an address of its own, is a warning, which ends a strict build.
"""

import html
import logging
import re
from pathlib import Path
from typing import Any

LOG = logging.getLogger("mkdocs.hooks.formulas")
# What pymdownx.arithmatex marks.
MARKED = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)
TAG = re.compile(r"<[^>]+>")
# Code, and the source of a formula, may have any characters.
CODE = re.compile(r"<(code|pre|script|style)\b.*?</\1>", re.DOTALL)
RAW = re.compile(r"\\[()\[\]]|\\[A-Za-z]+|\$[^$\s][^$<>]*\$")
LOADED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?(?:https?:)?//[^"'\s>]+|"""
    r"""<link\b(?=[^>]*\brel=["']?(?:stylesheet|preconnect|preload|icon|dns-prefetch))[^>]*\bhref=["']?(?:https?:)?//[^"'\s>]+|"""
    r"""(?:@import\s+|url\()["']?(?:https?:)?//[^"')\s]+""",
    re.IGNORECASE,
)  # fmt: skip
# Where the theme repeats a heading, and the texts of pictures, with their formulas as they were written.
REPEATED = re.compile(r'<title>.*?</title>|<span class="md-ellipsis">.*?</span>|\balt="[^"]*"', re.DOTALL)
INLINE = re.compile(r"\\\(.*?\\\)", re.DOTALL)
# Known to TeX and not to the converter: as what it knows. TeX sets a space between the name of a function and an
# argument without brackets.
KNOWN_AS = (
    (r"\\arg\\(min|max)(?![A-Za-z])", r"\\text{arg}\\,\\\1"),
    (r"\\_", "_"),
    # Without braces the converter writes a `mathvariant`, which browsers ignore.
    (r"\\(mathbb|mathbf|mathcal|mathsf)\s*([A-Za-z0-9])", r"\\\1{\2}"),
    (r"\\(log|ln|exp|sinh|cosh|tanh)\s*(?=[0-9]|(?<=\s)[A-Za-z]|\\(?!big|left)[A-Za-z])", r"\\\1\\,"),
)
# Bars are delimiters here; browsers take them for relations, with a space on both sides.
BAR = re.compile(r"<mo([^>]*)>(&#x0007C;|&#x02016;)</mo>")


def mathml(source: str) -> str:
    r"""A formula in `\(`, `\)` or in `\[`, `\]` as MathML."""
    from latex2mathml.converter import convert

    tex = source.strip()[2:-2]
    for known, instead in KNOWN_AS:
        tex = re.sub(known, instead, tex)
    formula = convert(tex, display="block" if source.strip().startswith(r"\[") else "inline")
    return BAR.sub(r'<mo\1 lspace="0" rspace="0">\2</mo>', formula)


def faults(page: str) -> list[str]:
    """What a page loads from elsewhere, and what is left of TeX in its text."""
    text = html.unescape(TAG.sub("", CODE.sub("", page)))
    return [*LOADED.findall(page), *RAW.findall(text)]


def on_page_content(content: str, page: Any, **_: Any) -> str:
    """The content of a page with its formulas in MathML."""

    def drawn(found: re.Match[str]) -> str:
        tag, source = found[1], html.unescape(found[2])
        try:
            formula = mathml(source)
        except Exception as error:
            # The converter has a class for each fault, and whichever it is names the formula.
            LOG.warning("%s: %r in the formula %s", page.file.src_path, error, source)
            return found[0]
        return f'<{tag} class="formula">{formula}</{tag}>'

    return MARKED.sub(drawn, content)


def on_post_page(output: str, **_: Any) -> str:
    """A page with the formulas that the theme repeats: in MathML, or in characters alone where no tag may stand."""

    def drawn(place: re.Match[str]) -> str:
        def one(found: re.Match[str]) -> str:
            formula = mathml(html.unescape(found[0]))
            return formula if place[0].startswith("<span") else TAG.sub("", formula)

        return INLINE.sub(one, place[0])

    return REPEATED.sub(drawn, output)


def on_post_build(config: Any, **_: Any) -> None:
    """Warns of each fault of each built page and stylesheet."""
    site = Path(config.site_dir)
    for path in sorted([*site.rglob("*.html"), *site.rglob("*.css")]):
        text = path.read_text(encoding="utf-8")
        found = faults(text) if path.suffix == ".html" else LOADED.findall(text)
        for fault in found:
            LOG.warning("%s: %s", path.relative_to(site), fault)
