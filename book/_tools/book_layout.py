"""What the book consists of: pages and numbers from `_toc.yml`, addresses from `_config.yml`."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]


class BookError(Exception):
    """Something in the sources that has to be changed; the message says where and what."""


def with_sections(entries: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Entries of a part, each followed by the pages below it."""
    for entry in entries:
        yield entry
        yield from with_sections(entry.get("sections", []))


@dataclass(frozen=True)
class Page:
    docname: str  # book/03-mask-rate-curve
    path: Path
    number: str | None  # "3", "3½" after it, "A" for a note, None for front and back matter

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def notebook(self) -> Path:
        return self.path.with_suffix(".ipynb")

    @property
    def is_note(self) -> bool:
        return self.number is not None and self.number.isalpha()

    @property
    def title(self) -> str:
        """ "Chapter 3" or "Note A", as references print it."""
        return f"{'Note' if self.is_note else 'Chapter'} {self.number}"


@dataclass(frozen=True)
class Book:
    root: Path = ROOT

    @cached_property
    def config(self) -> dict[str, Any]:
        return yaml.safe_load((self.root / "_config.yml").read_text(encoding="utf-8"))

    @cached_property
    def pages(self) -> list[Page]:
        toc = yaml.safe_load((self.root / "_toc.yml").read_text(encoding="utf-8"))
        pages = []
        chapter = 0
        for part in [{"chapters": [{"file": toc["root"]}]}, *toc["parts"]]:
            for entry in with_sections(part["chapters"]):
                name = entry["file"].removesuffix(".md")
                number = None
                note = re.match(r"note-([a-z])-", Path(name).name)
                if part.get("numbered") and name != entry["file"]:
                    # A short chapter without digits in its name moves no number of those behind it.
                    between = note is None and chapter > 0 and not Path(name).name[0].isdigit()
                    chapter += note is None and not between
                    number = note[1].upper() if note else f"{chapter}½" if between else str(chapter)
                pages.append(Page(name, self.root / f"{name}.md", number))
        return pages

    @property
    def chapters(self) -> list[Page]:
        """The pages with a notebook: chapters, then notes."""
        return [page for page in self.pages if page.number is not None]

    def chapter(self, name: str) -> Page:
        """A chapter or note by file name, stem, number or letter: 03, 3, a, 03-mask-rate-curve."""
        wanted = Path(name).name.removesuffix(".md").removesuffix(".ipynb")
        for page in self.chapters:
            if wanted == page.name or wanted.lstrip("0").upper() == page.number:
                return page
        known = ", ".join(page.name for page in self.chapters)
        raise BookError(f"no chapter {name!r}; there are: {known}")

    @property
    def repository(self) -> str:
        return self.config["repository"]["url"]

    @property
    def site(self) -> str:
        return "https://{}.github.io/{}".format(*self.repository.split("/")[-2:])

    @property
    def package(self) -> str:
        """What pip installs for a notebook: the tag of the release that it is made for.

        A version has its tag when the changelog gives its date. Before, it is the repository's head.
        """
        changelog = (self.root / "CHANGELOG.md").read_text(encoding="utf-8")
        dated = re.match(r"[^(]*## (\S+) \(\d", changelog)
        tag = f"@v{dated[1]}" if dated else ""
        return f"git+{self.repository}{tag}"

    def colab(self, docname: str) -> str:
        """Where Colab opens a chapter's notebook, as the page's rocket does."""
        owner_and_name = "/".join(self.repository.split("/")[-2:])
        branch = self.config["repository"]["branch"]
        colab = self.config["launch_buttons"]["colab_url"]
        return f"{colab}/github/{owner_and_name}/blob/{branch}/{docname}.ipynb"

    def url(self, docname: str, anchor: str = "") -> str:
        return f"{self.site}/{docname}.html" + (f"#{anchor}" if anchor else "")
