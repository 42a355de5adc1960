"""The code of each chapter that a reader can copy from its page, as one file in _build/copied."""

import sys
from pathlib import Path

import nbformat
from book_layout import ROOT, Book
from notebooks import REMOVING_TAGS, code_of

TARGET = ROOT / "_build" / "copied"
NOT_ON_THE_PAGE = REMOVING_TAGS | {"colab"}


def code_on_page(notebook: Path) -> str:
    """All cells of a notebook that its page shows, folded ones too, in their order."""
    cells = []
    for cell in code_of(nbformat.read(notebook, as_version=4)):
        if NOT_ON_THE_PAGE.isdisjoint(cell.metadata.get("tags", [])):
            cells.append(cell.source)
    return "\n\n".join(cells) + "\n"


def main() -> int:
    TARGET.mkdir(parents=True, exist_ok=True)
    for page in Book().chapters:
        (TARGET / f"{page.name}.py").write_text(code_on_page(page.notebook), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
