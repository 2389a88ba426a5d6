"""The hook that turns formulas into MathML, and what it finds wrong with a built page."""

import sys
from types import ModuleType

import pytest

from tests.docs.pages import DOCS, configuration, module_of


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    return module_of("formulas.py")


@pytest.mark.parametrize(
    "page",
    [
        '<script src="https://example.org/a.js"></script>',
        '<link rel="stylesheet" href="https://example.org/a.css">',
        "<style>@font-face { src: url(https://example.org/a.woff2) }</style>",
        '<img src="https://example.org/a.png">',
        r"<p>with \(x\) in it</p>",
        r"<math><mi>\mystery</mi></math>",
        "<p>of $x_i$ alone</p>",
    ],
)
def test_what_a_built_page_may_not_have_is_found(hook: ModuleType, page: str) -> None:
    assert hook.faults(page)


def test_links_code_and_prices_are_no_faults(hook: ModuleType) -> None:
    page = (
        r'<a href="https://example.org">there</a> <link rel="canonical" href="https://example.org/">'
        r'<pre><code>r"\(x\)" "$HOME"</code></pre><script src="a.js"></script><img src="images/a.png"> 5 $ or 6 $'
    )
    assert hook.faults(page) == []


def test_formulas_are_replaced_where_the_theme_repeats_them(hook: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    converter = ModuleType("latex2mathml.converter")
    converter.convert = lambda tex, display: f"<math display={display}><mi>{tex}</mi><mo>&#x0007C;</mo></math>"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "latex2mathml", ModuleType("latex2mathml"))
    monkeypatch.setitem(sys.modules, "latex2mathml.converter", converter)
    content = hook.on_page_content(
        r'<p><span class="arithmatex">\(a&lt;b\)</span></p><div class="arithmatex">\[\arg\min_x\]</div>', page=None
    )
    bar = '<mo lspace="0" rspace="0">&#x0007C;</mo></math>'
    assert f'<span class="formula"><math display=inline><mi>a<b</mi>{bar}</span>' in content
    assert rf'<div class="formula"><math display=block><mi>\text{{arg}}\,\min_x</mi>{bar}</div>' in content
    for source, spaced in {
        r"\log t": r"\log\,t",
        r"\log\log\rho": r"\log\,\log\,\rho",
        r"\log(1+t)": r"\log(1+t)",
        r"\mathbb R^d": r"\mathbb{R}^d",
    }.items():
        assert f"<mi>{spaced}</mi>" in hook.mathml(rf"\({source}\)")
    repeated = r'<title>Of \(W\)</title><span class="md-ellipsis">Of \(W\)</span><img alt="of \(W\)"><code>\(W\)</code>'
    assert hook.on_post_page(repeated) == (
        f'<title>Of W&#x0007C;</title><span class="md-ellipsis">Of <math display=inline><mi>W</mi>{bar}</span>'
        r'<img alt="of W&#x0007C;"><code>\(W\)</code>'
    )


def test_pages_load_nothing_from_elsewhere() -> None:
    """The offline plugin would load its shim from elsewhere if none were named."""
    config = configuration()
    named = [*config["extra"]["polyfills"], *config["extra_css"], *config.get("extra_javascript", [])]
    assert "docs/formulas.py" in config["hooks"] and "offline" in config["plugins"]
    assert any("iframe-worker" in name for name in named)
    assert all((DOCS / name).exists() for name in named)
