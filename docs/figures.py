"""Pictures and claims of the papers' pages.

    python docs/figures.py --pictures OUT    # pictures of `jaxflow reproduce ... --out OUT/PAPER`, as small files
    python docs/figures.py                   # the figures' sections of docs/papers, from docs/claims and docs/images

A picture never goes without the scale and the seed it was drawn at, and the seconds that its numbers took: they stand
in docs/images/figures.json.
"""

import argparse
import json
import re
import shutil
from pathlib import Path

DOCS = Path(__file__).resolve().parent
IMAGES, CLAIMS, PAPERS = DOCS / "images", DOCS / "claims", DOCS / "papers"
RECORD = IMAGES / "figures.json"
# A page a paper, and that of results beyond them.
PAGES = [*sorted(PAPERS.glob("*.md")), DOCS / "results.md"]
BEGIN, END = "<!-- FIGURES: BEGIN (python docs/figures.py) -->", "<!-- FIGURES: END -->"

# Bytes of a picture.
LARGEST = 150_000
# A vector graphic above this is stored as pixels: it has thousands of points.
VECTORS = 60_000
WIDTH = 1400


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=Path, help="a folder with one folder for each paper")
    folder = parser.parse_args().pictures
    if folder is not None:
        take_pictures(folder)
    for page in PAGES:
        page.write_text(with_figures(page), encoding="utf-8")


def take_pictures(folder: Path) -> None:
    """Copies what `reproduce` drew into docs/images, with how it was drawn."""
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    for told in sorted(folder.glob("*/*-manifest.json")):
        made = json.loads(told.read_text(encoding="utf-8"))
        arguments = made["arguments"]
        if "figure" not in arguments:
            continue  # That of `jaxflow verify`.
        name = f"{arguments['paper']}-{arguments['figure']}"
        picture = store(told.with_name(f"{arguments['figure']}.svg"), name)
        record[name] = {"file": picture, "scale": arguments["scale"], "seed": made["seed"], "seconds": made["seconds"]}
    RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def store(vectors: Path, name: str) -> str:
    """A vector graphic where it is small, else WebP."""
    for old in IMAGES.glob(f"{name}.*"):
        old.unlink()
    if vectors.stat().st_size <= VECTORS:
        return shutil.copy(vectors, IMAGES / f"{name}.svg").name
    from PIL import Image

    with Image.open(vectors.with_suffix(".png")) as image:
        picture = image.convert("RGB")
        if picture.width > WIDTH:
            picture = picture.resize((WIDTH, round(picture.height * WIDTH / picture.width)))
        for quality in (88, 78, 65, 50):
            picture.save(IMAGES / f"{name}.webp", quality=quality, method=6)
            if (IMAGES / f"{name}.webp").stat().st_size <= LARGEST:
                break
    return f"{name}.webp"


def with_figures(page: Path) -> str:
    """A paper's page with its figures between the marks."""
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise ValueError(f"{page}: the marks for figures are missing")
    up = "../" if page.parent == PAPERS else ""
    return f"{before}{BEGIN}\n\n{sections(page.stem, up)}\n\n{END}{after}"


def sections(paper: str, up: str = "../") -> str:
    """One section a figure: picture, scale, claims with their verdicts."""
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    files = [path for path in CLAIMS.glob(f"{paper}-*.md") if path.stem != f"{paper}-theorems"]
    return "\n\n".join(section(path, record, up) for path in sorted(files, key=lambda path: _order(path.stem)))


def section(claims: Path, record: dict, up: str) -> str:
    lines = claims.read_text(encoding="utf-8").splitlines()
    title = lines[0].partition(": ")[2]
    name = claims.stem.partition("-")[2]
    called = re.sub(r"^fig(\d+)$", r"Figure \1", name)
    parts = [f"### {called}: {title}" if called != name else f"### {title}"]
    paper = claims.stem.partition("-")[0]
    if (drawn := record.get(claims.stem)) is not None:
        took = f", in {drawn['seconds']:,.0f} s" if "seconds" in drawn else ""
        command = f"jaxflow reproduce {paper} {name} --scale {drawn['scale']}"
        parts += [
            f"![{paper} {name}: {title}]({up}images/{drawn['file']})",
            f"*Drawn at {drawn['scale']} scale, seed {drawn['seed']}{took}: `{command}`. What was measured for "
            f"each claim, and on how many instances: [claims]({up}claims/{claims.name}).*",
        ]
    else:
        parts.append(f"*What was measured for each claim: [claims]({up}claims/{claims.name}).*")
    rows = [row for row in map(cells, lines) if row]
    table = ["| the paper says | source | verdict |", "|---|---|---|"]
    table += [f"| {row[1]} | {row[0]} | {row[-1]} |" for row in rows]
    return "\n\n".join([*parts, "\n".join(table)])


def cells(line: str) -> list[str]:
    """The cells of a row of claims; none for other lines."""
    if not line.startswith("| ") or line.startswith(("| source ", "|---", "| ---")):
        return []
    found = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
    return found if found[-1].startswith("**") else []


def _order(stem: str) -> tuple[int, int, str]:
    """Figures by number, then the others by name."""
    number = re.search(r"-fig(\d+)$", stem)
    return (0, int(number[1]), "") if number else (1, 0, stem)


if __name__ == "__main__":
    main()
