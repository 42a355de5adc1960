"""Make the written pages light, and still while they load.

The theme asks for some fifty files and 1.4 MB on a first visit, most of it an icon library, twice.

* Style sheets become one file, and the scripts that every page has two; an explorer's script
  (``NAME-explorer.js``) stays on the pages that have an element of the class ``NAME-explorer``. Our own
  lose their comments and their indentation.
* Of the icon fonts the glyphs that are used are kept, inside the style sheet; their rules, too.
  A theme without the fonts' TrueType files (newer ones have WOFF 2 alone) keeps all of its icons.
* The side bar folds the parts behind the chapters.
* The search's scripts and index are on the page of the search only.
* Pictures say how large they are, and formulas are set before they are shown (``typeset.js``).
* A page has its colors before its first line is drawn, and no box is measured while it loads.
* A full stop after a formula in a line stays with it, and a cell of the ledger's tables says the
  name of its column.
* A long line of code or output says how far it is indented, so that on a phone it wraps behind that.
"""

import base64
import hashlib
import html
import io
import logging
import re
import sys
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from docutils import nodes
from fontTools.subset import Options, Subsetter
from fontTools.ttLib import TTFont
from sphinx import addnodes
from sphinx.application import Sphinx

sys.path.append(str(Path(__file__).resolve().parents[1] / "_tools"))

from memory import Memory

# These begin with what stands nowhere else, so that they find it fast.
SHEET = re.compile(r'<link\b[^>]*\brel="stylesheet"[^>]*>\n?')
SCRIPT = re.compile(r'<script\b[^>]*\bsrc="([^"]+)"[^>]*>\s*</script>\n?')
PRELOAD = re.compile(r'<link\b[^>]*\brel="preload"[^>]*>\n?')
HREF = re.compile(r'\bhref="([^"]+)"')
IMAGE = re.compile(r'<img\b[^>]*\bsrc="([^"]+\.svg)"[^>]*>')
SIZE = re.compile(r'<svg\b[^>]*?\bwidth="([\d.]+)(pt|px)?"[^>]*?\bheight="([\d.]+)(pt|px)?"', re.S)
SIZE_SWAPPED = re.compile(
    r'<svg\b[^>]*?\bheight="([\d.]+)(pt|px)?"[^>]*?\bwidth="([\d.]+)(pt|px)?"', re.S
)
FORMULA = r'<span class="math notranslate nohighlight">\\\((?:(?!</span>).)*?\\\)</span>'
PUNCTUATED = re.compile(rf"([(“‘]?)({FORMULA})((?:[.,;:!?)”’…]|-\w+)+)", re.S)

# Parts of the side bar that open on a click; a page of theirs opens its own.
FOLDED_PARTS = ("Research notes", "Reference")
PART = re.compile(
    r'<p aria-level="2" class="caption" role="heading"><span class="caption-text">([^<]*)</span></p>'
    r'(.*?)(?=<p aria-level="2" class="caption"|\s*</div>\s*</nav>)',
    re.S,
)

LEDGER = re.compile(r'<table class="ledger.*?</table>', re.S)
CODE = re.compile(r'(<div class="highlight"><pre>)(.*?)(</pre></div>)', re.S)
CHARACTERS_ON_A_PHONE = 44

COMMENT = re.compile(r"^[ \t]*/\*(?!!).*?\*/[ \t]*\n", re.S | re.M)
LINE_COMMENT = re.compile(r"^[ \t]*//.*\n", re.M)
INDENTATION = re.compile(r"^[ \t]+", re.M)

# Not asked for by any page of this book, or by the page of the search alone.
SUPERFLUOUS = ("fontawesome.js", "searchtools.js", "searchindex.js", "language_data.js")
OPTIONS = "documentation_options.js"  # inline scripts of the page need it at once
TABS = "design-tabs.js"
THEME = "pydata-sphinx-theme.js"
EXPLORERS = ("explorers.js", "explorers.css")

ICON_FACE = re.compile(r"@font-face\s*\{[^}]*Font ?Awesome[^}]*\}", re.I)
ICON_RULE = re.compile(r'((?:\.fa-[\w-]+::?before\s*,?\s*)+)\{content:"([^"]*)"\}')
FONTS = {  # family, weight
    "fa-solid-900.ttf": ("Font Awesome 6 Free", 900),
    "fa-regular-400.ttf": ("Font Awesome 6 Free", 400),
    "fa-brands-400.ttf": ("Font Awesome 6 Brands", 400),
}
WEBFONTS = Path("_static", "vendor", "fontawesome", "webfonts")

# Hides what follows the first formula until typeset.js has set those in sight; never for long.
SETTING = (
    "<script>document.documentElement.classList.add('setting');"
    "setTimeout(() => document.documentElement.classList.remove('setting'), 4000)</script>"
)

# What MathJax's first file will ask for, one after the other, is on its way before.
MATHJAX_PARTS = [
    "core.js",
    "input/tex.js",
    "output/chtml.js",
    "output/chtml/fonts/tex.js",
    "a11y/assistive-mml.js",
]
EARLY = (
    f"<script>for (const part of {MATHJAX_PARTS})"
    " document.head.append(Object.assign(document.createElement('link'), {"
    " rel: 'preload', as: 'script', fetchPriority: 'low',"
    " href: document.documentElement.dataset.content_root + '_static/mathjax/' + part }))</script>"
)

# The theme puts "light" or "dark" in the place of "auto" when its script runs: too late, since every
# style is then computed again.
COLORS = (
    "<script>(page => { if (page.theme === 'auto') page.theme ="
    " matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light'"
    " })(document.documentElement.dataset)</script>"
)
# The theme's script measures all boxes that might scroll, after loading and after each change, and so
# has all of the page laid out. scroll-by-keyboard.js does that for those near the screen.
MEASURES_BOXES = re.compile(
    r'"complete"===document\.readyState\?(\w+)\(\):window\.addEventListener\("load",\1\)'
)


def indented(match: re.Match[str]) -> str:
    """Code whose long lines stand in a span each, with the spaces that they begin with (book.css)."""
    lines = []
    for line in match[2].split("\n"):
        visible = html.unescape(re.sub(r"<[^>]*>", "", line))
        if len(visible) > CHARACTERS_ON_A_PHONE:
            spaces = len(visible) - len(visible.lstrip())
            line = f'<span class="long" style="--spaces:{spaces}">{line}</span>'
        lines.append(line)
    return match[1] + "\n".join(lines) + match[3]


def without_comments(script: str) -> str:
    """A script of ours, no text of which goes over a line's end, without comments and indentation."""
    return INDENTATION.sub("", LINE_COMMENT.sub("", COMMENT.sub("", script)))


def file_of(page: Path, address: str) -> Path:
    return (page.parent / urlsplit(address).path).resolve()


def relative(page: Path, file: Path, out: Path) -> str:
    return "../" * len(page.parent.relative_to(out).parts) + file.relative_to(out).as_posix()


def with_imports(sheet: Path, static: Path) -> str:
    """The text of a style sheet with what it imports, its addresses seen from ``static``."""
    text = sheet.read_text(encoding="utf-8")

    def imported(match: re.Match[str]) -> str:
        return with_imports((sheet.parent / match[1]).resolve(), static)

    def moved(match: re.Match[str]) -> str:
        address = match[2]
        if re.match(r"data:|#|\w+:", address):
            return match[0]
        target = (sheet.parent / address).resolve()
        inside = target.is_relative_to(static)
        return f"url({match[1]}{target.relative_to(static).as_posix() if inside else address}{match[1]})"

    text = re.sub(r'@import\s+"([^"]+)";', imported, text)
    text = re.sub(r"/\*# sourceMappingURL=.*?\*/", "", text)
    return re.sub(r"url\((['\"]?)([^'\")]+)\1\)", moved, text)


def icon_font(file: Path, codes: set[int]) -> str | None:
    """The glyphs of a font that are wanted, as a data address; ``None`` if it has none of them."""
    font = TTFont(file, recalcTimestamp=False)  # the same bytes in each build
    wanted = codes & set(font.getBestCmap())
    if not wanted:
        return None
    logging.getLogger("fontTools").setLevel(logging.WARNING)  # it would tell every table
    cutter = Subsetter(Options(layout_features=[], hinting=False, notdef_outline=False))
    cutter.populate(unicodes=wanted)
    cutter.subset(font)
    font.flavor = "woff"
    packed = io.BytesIO()
    font.save(packed)
    return f"data:font/woff;base64,{base64.b64encode(packed.getvalue()).decode()}"


def fonts_can_be_cut(out: Path) -> bool:
    """Whether the theme brought every icon font as a TrueType file, which is what is read here."""
    return all((out / WEBFONTS / name).is_file() for name in FONTS)


def icons_cut(css: str, names: set[str], out: Path) -> str:
    """A style sheet with the rules and glyphs of the icons in ``names`` and of its own rules only."""
    if not fonts_can_be_cut(out):
        return css

    def kept(match: re.Match[str]) -> str:
        used = names & set(re.findall(r"\.fa-([\w-]+?)::?before", match[1]))
        return match[0] if used else ""

    css = ICON_FACE.sub("", ICON_RULE.sub(kept, css))
    escaped = {int(code, 16) for code in re.findall(r"\\(f[0-9a-f]{3})\b", css)}
    codes = escaped | {ord(letter) for letter in css if "\uf000" <= letter <= "\uf8ff"}
    faces = []
    for name, (family, weight) in FONTS.items():
        data = icon_font(out / WEBFONTS / name, codes)
        if data:
            faces.append(
                f'@font-face{{font-family:"{family}";font-weight:{weight};font-display:block;'
                f"src:url({data})}}"
            )
    return css + "\n" + "\n".join(faces) + "\n"


def labelled(table: re.Match[str]) -> str:
    """A table whose cells say the name of their column, which stands above each on a phone."""
    head, _, body = table[0].partition("</thead>")
    names = [re.sub(r"<[^>]+>", "", name) for name in re.findall(r"<th\b.*?</th>", head, re.S)]

    def row(found: re.Match[str]) -> str:
        cells = iter(names)
        return re.sub(r"<td\b", lambda _: f'<td data-label="{next(cells)}"', found[0])

    return head + "</thead>" + re.sub(r"<tr\b.*?</tr>", row, body, flags=re.S)


def folded(part: re.Match[str]) -> str:
    """A part of the side bar, closed where it is one of those and has not the page itself."""
    name, pages = part.groups()
    if name not in FOLDED_PARTS:
        return part[0]
    opened = " open" if 'class="current' in pages else ""
    return (
        f'<details class="sidebar-part"{opened}><summary class="caption">'
        f'<span class="caption-text">{name}</span></summary>{pages}</details>'
    )


def laid_out(text: str) -> str:
    """A page whose tables, code, side bar and formulas are mended; no other file matters for it."""
    text = LEDGER.sub(labelled, text)
    text = CODE.sub(indented, text)
    text = PART.sub(folded, text)
    text = PUNCTUATED.sub(r'<span class="kept">\1\2\3</span>', text)
    early = COLORS + SETTING + EARLY if 'class="math' in text else COLORS
    return text.replace("</head>", f"{early}\n</head>", 1)


def mark_what_waits(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Give a class to the parts of a page, paragraphs and sections, from its first formula on."""
    page = doctree.next_node(nodes.section)
    waits = False
    for part in page or ():
        waits = waits or bool(part.next_node(is_formula, include_self=True))
        if waits:
            shown = part[0] if isinstance(part, addnodes.glossary) else part  # the list in it
            shown["classes"].append("waits-for-formulas")


def is_formula(node: nodes.Node) -> bool:
    return isinstance(node, (nodes.math, nodes.math_block))


class Lightener:
    """Mends the pages of one output folder."""

    def __init__(self, out: Path, own_scripts: set[str], memory: Memory) -> None:
        self.out = out
        self.own_scripts = own_scripts
        self.memory = memory
        self.static = out / "_static"
        self.pages = [each for each in out.rglob("*.html") if "_static" not in each.parts]
        texts = (page.read_text(encoding="utf-8") for page in self.pages)
        self.icons = {name for text in texts for name in re.findall(r'[" ]fa-([a-z][\w-]*)', text)}
        self.style = cache(self.style)
        self.bundle = cache(self.bundle)
        self.size = cache(self.size)

    def written(self, kind: str, text: str) -> Path:
        """A file with ``text``, whose name changes with it."""
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        file = self.static / f"book-{digest}.{kind}"
        file.write_text(text, encoding="utf-8")
        return file

    def text_of(self, script: Path) -> str:
        text = script.read_text(encoding="utf-8")
        if script.name in self.own_scripts:
            return without_comments(text)
        return MEASURES_BOXES.sub("null", text) if script.name == THEME else text

    def style(self, sheets: tuple[Path, ...]) -> Path:
        css = "\n".join(with_imports(sheet, self.static) for sheet in sheets)
        css = INDENTATION.sub("", COMMENT.sub("", css))
        css = re.sub(r'@charset "[^"]*";', "", css, flags=re.I)
        cut = partial(icons_cut, css, self.icons, self.out)
        return self.written("css", self.memory.of(f"{sorted(self.icons)}{css}".encode(), cut))

    def bundle(self, scripts: tuple[Path, ...]) -> Path:
        parts = [self.text_of(script) for script in scripts]
        plain = (re.sub(r"^//# sourceMappingURL=.*$", "", part, flags=re.M) for part in parts)
        return self.written("js", ";" + "\n;\n".join(plain))

    def size(self, picture: Path) -> tuple[int, int] | None:
        """Width and height of an SVG in pixels."""
        if not picture.is_file():
            return None
        head = picture.read_text(encoding="utf-8")[:3000]
        found, swapped = SIZE.search(head), SIZE_SWAPPED.search(head)
        if found is None and swapped is None:
            return None
        wide, wide_unit, high, high_unit = (
            found.groups() if found else (swapped[3], swapped[4], swapped[1], swapped[2])
        )
        pixels = {"pt": 4 / 3, "px": 1, None: 1}
        return round(float(wide) * pixels[wide_unit]), round(float(high) * pixels[high_unit])

    def mend(self, page: Path, text: str) -> str:
        has_explorer = bool(re.search(r'class="[^"]*\bexplorer\b', text))
        text = self.one_style(page, text, has_explorer)
        text = self.few_scripts(page, text, has_explorer)
        text = IMAGE.sub(lambda match: self.sized(page, match), text)
        return self.memory.of(text.encode(), partial(laid_out, text))

    def one_style(self, page: Path, text: str, has_explorer: bool) -> str:
        sheets = [file_of(page, HREF.search(link)[1]) for link in SHEET.findall(text)]
        kept = tuple(each for each in sheets if has_explorer or each.name not in EXPLORERS)
        if not kept:
            return text
        link = f'<link rel="stylesheet" href="{relative(page, self.style(kept), self.out)}" />\n'
        first = SHEET.search(text).start()
        return text[:first] + link + SHEET.sub("", text[first:])

    def few_scripts(self, page: Path, text: str, has_explorer: bool) -> str:
        found = list(SCRIPT.finditer(text))
        common, others = [], []
        for match in found:
            file = file_of(page, match[1])
            explorer = re.fullmatch(r"([\w-]+-explorer)\.js", file.name)
            if explorer or file.name in EXPLORERS:
                name = explorer[1] if explorer else "explorer"
                if has_explorer and re.search(rf'class="[^"]*\b{name}\b', text):
                    others.append(match[0])
            elif {"mathjax", "cards"} & {*file.parts} or file.name == "search-data.js":
                others.append(match[0])
            elif file.name not in (*SUPERFLUOUS, OPTIONS) and (
                file.name != TABS or "sd-tab-" in text
            ):
                common.append(file)
        if not common:
            return text
        options = (self.static / OPTIONS).read_text(encoding="utf-8")
        # All deferred, so in this order: the common ones, explorers and previews, MathJax. The theme's
        # are a file of their own, so that the page answers before they run.
        said = [f"<script>{options}</script>\n"]
        for is_theme in (False, True):
            some = tuple(file for file in common if (file.parent.name == "scripts") == is_theme)
            if some:
                address = relative(page, self.bundle(some), self.out)
                said.append(f'<script defer src="{address}"></script>\n')
        said += others
        first = found[0].start()
        text = text[:first] + "".join(said) + SCRIPT.sub("", text[first:])
        return PRELOAD.sub("", text)

    def sized(self, page: Path, match: re.Match[str]) -> str:
        size = self.size(file_of(page, match[1]))
        if size is None or re.search(r'\b(?:width|height|style)="', match[0]):
            return match[0]
        return match[0].replace("<img", f'<img width="{size[0]}" height="{size[1]}"', 1)


def lighten(app: Sphinx, exception: Exception | None) -> None:
    if exception is not None or app.builder.format != "html":
        return
    folders = (Path(__file__).with_name("static"), Path(app.srcdir, "book", "_static"))
    own_scripts = {script.name for folder in folders for script in folder.glob("*.js")}
    with Memory(Path(app.srcdir), "light") as memory:
        lightener = Lightener(Path(app.outdir), own_scripts, memory)
        for name in own_scripts:
            script = lightener.static / name
            if script.is_file():  # one that stays by itself
                script.write_text(lightener.text_of(script), encoding="utf-8")
        for page in lightener.pages:
            text = page.read_text(encoding="utf-8")
            page.write_text(lightener.mend(page, text), encoding="utf-8")
    for name in ("scripts/fontawesome.js", "scripts/fontawesome.js.map"):
        (lightener.static / name).unlink(missing_ok=True)
    if fonts_can_be_cut(lightener.out):  # then the style sheet has the glyphs that are used
        for font in (lightener.out / WEBFONTS).glob("*"):
            font.unlink()


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("doctree-resolved", mark_what_waits)
    app.connect("build-finished", lighten, priority=850)  # before the pages get their policy
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
