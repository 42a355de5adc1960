"""Checks on notebooks and on built pages; each returns the faults it found, in words."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

from lxml import html
from nbformat import NotebookNode
from notebooks import clean_outputs, code_of, untitled

# -- notebooks ---------------------------------------------------------------------------------

RAW_MYST = {
    "directive": r"^\s*(?:>\s*)*(?:`{3,}|~{3,}|:{3,})\{",
    "colon fence": r"^\s*(?:>\s*)*:{3,}",
    "role": r"\{[a-zA-Z][\w:.-]*\}`",
    "target": r"^\([\w-]+\)=\s*$",
    "equation label": r"\$\$\s*\([\w-]+\)",
    "directive option": r"^\s*(?:>\s*)*:(?:label|class|name|alt|header-rows):",
    "cell break": r"^\+\+\+",
}
MACHINE_PATH = re.compile(r"(?:/work/|/tmp/|/root/|/home/\w|/Users/\w|[A-Z]:\\\\Users)")
ADDRESS = re.compile(r"\bat 0x[0-9a-f]{6,}")


def without_code(markdown: str) -> str:
    markdown = re.sub(r"^(?:> ?)*(`{3,})(?!\{).*?^(?:> ?)*\1\s*$", "", markdown, flags=re.M | re.S)
    return re.sub(r"(?<![`}])(`{1,2})(?!`)(.+?)(?<!`)\1(?!`)", "", markdown, flags=re.S)


def raw_myst(notebook: NotebookNode) -> list[str]:
    return [
        f"cell {number}: {what} {match[0]!r}"
        for number, cell in enumerate(notebook.cells)
        if cell.cell_type == "markdown"
        for what, pattern in RAW_MYST.items()
        for match in re.finditer(pattern, without_code(cell.source), re.M)
    ]


def never_executed(notebook: NotebookNode) -> list[str]:
    return [
        f"cell {number} has no execution_count"
        for number, cell in enumerate(notebook.cells)
        if cell.cell_type == "code" and not cell.get("execution_count")
    ]


def texts_of(cell: NotebookNode) -> Iterator[str]:
    yield cell.source
    for output in cell.get("outputs", []):
        yield "".join(output.get("text", ""))
        for mime, data in output.get("data", {}).items():
            if not mime.startswith("image/"):
                yield "".join(data) if isinstance(data, list | str) else json.dumps(data)


def machine_dependent(notebook: NotebookNode) -> list[str]:
    """Paths, object addresses, messages on stderr, errors and times in what a reader gets."""
    faults = []
    for number, cell in enumerate(notebook.cells):
        for text in texts_of(cell):
            for pattern in (MACHINE_PATH, ADDRESS):
                faults += [f"cell {number}: {match[0]!r}" for match in pattern.finditer(text)]
        for output in cell.get("outputs", []):
            if output.get("name") == "stderr" or output.output_type == "error":
                faults.append(f"cell {number}: {output.get('name', 'an error')} in its outputs")
        if "execution" in cell.metadata:
            faults.append(f"cell {number}: times in its metadata")
    return faults


def outside_scripts(notebook: NotebookNode) -> list[str]:
    pattern = re.compile(r"<(?:script|img|iframe|link)[^>]*(?:src|href)\s*=\s*[\"']?https?:", re.I)
    return [
        f"cell {number}: {match[0]!r}"
        for number, cell in enumerate(notebook.cells)
        for text in texts_of(cell)
        for match in pattern.finditer(text)
    ]


# -- built pages -------------------------------------------------------------------------------

LOADING = (
    "//script[@src] | //img[@src] | //iframe[@src] | //source[@src] | //link[@href] | //embed[@src]"
)
NOT_LOADED = {"canonical", "license", "author", "alternate", "edit", "next", "prev", "search"}


def of_class(name: str) -> str:
    return f"contains(concat(' ', normalize-space(@class), ' '), ' {name} ')"


@lru_cache(256)
def page(path: Path) -> html.HtmlElement:
    return html.document_fromstring(path.read_bytes(), parser=html.HTMLParser(encoding="utf-8"))


@lru_cache(256)
def anchors(path: Path) -> frozenset[str]:
    return frozenset(map(str, page(path).xpath("//@id | //a/@name")))


def book_pages(site: Path) -> list[Path]:
    return sorted(p for p in site.rglob("*.html") if "_static" not in p.parts)


def outside_loads(path: Path) -> list[str]:
    """Resources that a browser would fetch from another site to show the page."""
    faults = []
    for tag in page(path).xpath(LOADING):
        address = tag.get("src") or tag.get("href")
        relation = set(tag.get("rel", "").split())
        if re.match(r"(?:https?:)?//", address) and not relation & NOT_LOADED:
            faults.append(f"{path.name}: <{tag.tag}> {address}")
    for text in page(path).xpath("//style/text() | //@style"):
        faults += [f"{path.name}: {m}" for m in re.findall(r"url\(['\"]?https?:[^)]*", text)]
    return faults


def outside_loads_in_css(site: Path) -> list[str]:
    pattern = re.compile(r"(?:@import\s+(?:url\()?|url\()\s*['\"]?((?:https?:)?//[^'\")\s]+)")
    return [
        f"{path.name}: {match[1]}"
        for path in sorted(site.rglob("*.css"))
        for match in pattern.finditer(path.read_text(encoding="utf-8", errors="replace"))
    ]


def resolve(path: Path, address: str) -> tuple[Path, str]:
    parts = urlsplit(address)
    target = path if not parts.path else (path.parent / unquote(parts.path)).resolve()
    return (target / "index.html" if target.is_dir() else target), unquote(parts.fragment)


def broken_links(path: Path) -> list[str]:
    """Links and pictures inside the site whose file or anchor is not there."""
    faults = []
    for address in page(path).xpath("//a/@href | //img/@src | //script/@src | //link/@href"):
        if re.match(r"[a-z]+:|//", address) or address in ("", "#"):
            continue
        target, anchor = resolve(path, address)
        if not target.is_file():
            faults.append(f"{path.name}: {address}: no such file")
        elif anchor and target.suffix == ".html" and anchor not in anchors(target):
            faults.append(f"{path.name}: {address}: no such anchor")
    return faults


UNREAD = frozenset({"pre", "code", "script", "style"})


def read_texts(element: html.HtmlElement) -> Iterator[str]:
    """The texts of an element outside code and formulas."""
    if element.tag in UNREAD or "math" in element.get("class", "").split():
        return
    yield element.text or ""
    for part in element:
        if isinstance(part.tag, str):  # no comment
            yield from read_texts(part)
        yield part.tail or ""


def raw_roles(path: Path) -> list[str]:
    """MyST that the build left as text, outside code."""
    text = " ".join(read_texts(page(path)))
    return re.findall(r"\{(?:prf|eq|cite|ref|numref|doc|glue|term)[\w:]*\}|`{3,}|:label:", text)


def search_data(site: Path) -> list[dict]:
    """What the page of the search looks up."""
    text = (site / "_static" / "search-data.js").read_text(encoding="utf-8")
    return json.loads(text[text.index("=") + 1 : text.rindex(";")])


def found_by_search(pages: list[dict], word: str) -> set[str]:
    """Pages in whose text ``word`` stands, as a whole."""
    whole = re.compile(rf"\b{re.escape(word)}\b", re.I)
    return {
        page["address"].removesuffix(".html")
        for page in pages
        if any(whole.search(f"{heading} {text}") for _, heading, text in page["sections"])
    }


def colab_links(path: Path) -> list[str]:
    return [str(a) for a in page(path).xpath("//a/@href") if "colab.research.google.com" in a]


# -- both --------------------------------------------------------------------------------------

DIGITS = r"(?:\d+½?|[A-Z])\.\d+"
NUMBERED = "Theorem|Lemma|Proposition|Corollary|Definition|Algorithm|Remark|Example|Exercise"


def numbers_in_page(path: Path) -> list[str]:
    heads = f"//p[{of_class('admonition-title')}] | //*[{of_class('caption-number')}]"
    titles = [" ".join(" ".join(tag.itertext()).split()) for tag in page(path).xpath(heads)]
    found = [m[0] for t in titles if (m := re.match(rf"(?:{NUMBERED}|Figure|Table) {DIGITS}", t))]
    found += [f"Equation {m[0]}" for t in page(path).xpath(f"//span[{of_class('eqno')}]")
              if (m := re.search(DIGITS, t.text_content()))]  # fmt: skip
    return sorted(set(found))


def numbers_in_notebook(notebook: NotebookNode) -> list[str]:
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    heads = rf"^(?:(?:> )?\*\*|#### )((?:{NUMBERED}|Figure|Table) {DIGITS})"
    found = re.findall(heads, text, re.M)
    found += [f"Equation {number}" for number in re.findall(rf"\\tag\{{({DIGITS})\}}", text)]
    return sorted(set(found))


def unpublished_links(notebook: NotebookNode, address: str, site: Path) -> list[str]:
    """Links from a notebook to the published book that the built site would not answer."""
    faults = []
    for cell in notebook.cells:
        for link in re.findall(r"\]\((https?://[^)\s]+)(?: \"[^\"]*\")?\)", cell.source):
            if cell.cell_type == "markdown" and link.startswith(address):
                target, anchor = resolve(site / "x", link.removeprefix(address).lstrip("/"))
                if not target.is_file() or (anchor and anchor not in anchors(target)):
                    faults.append(link)
    return faults


def run(*command: object, cwd: Path, env: dict[str, str] | None = None) -> str:
    """What ``command`` prints; where it fails, what it said."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=env,
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return done.stdout


def outputs(cell: NotebookNode) -> list[dict]:
    """What a cell put out, without pictures, which differ with the fonts of a machine."""
    kept = []
    for output in clean_outputs(cell.outputs):
        data = output.get("data", {"text": output.get("text")})
        kept.append({kind: text for kind, text in data.items() if not kind.startswith("image/")})
    return kept


def other_outputs(notebook: NotebookNode, built: NotebookNode) -> list[str]:
    """Cells of a stored notebook that put out something else when the book was built."""
    own = [cell for cell in code_of(notebook) if "colab" not in cell.metadata.get("tags", [])]
    if [untitled(cell.source) for cell in own] != [untitled(c.source) for c in code_of(built)]:
        return ["the cells themselves differ"]
    pairs = zip(own, code_of(built), strict=True)
    return [cell.source for cell, again in pairs if outputs(cell) != outputs(again)]
