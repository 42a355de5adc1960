"""A chapter depends on what its cells import and read, by whatever way, and on nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from book_layout import Book
from chapter_sources import ChapterSources, changes

TREE = {
    "constraints.txt": "torch==1\n",
    "book/ledger.json": "{}",
    "book/results/table-1.json": "{}",
    "book/results/figure-1.json": "{}",
    "book/results/without-code.json": "{}",
    "book/results/network/weights.bin": "0",
    "book/results/network/README.md": "weights",
    "src/mpt_lml/__init__.py": "from mpt_lml import curves, masks\nfrom mpt_lml.models import PPCA\n"
    "from mpt_lml.recorded import load\n",
    "src/mpt_lml/book.mplstyle": "axes.grid: True\n",
    "src/mpt_lml/masks.py": "def subsets(): ...\n",
    "src/mpt_lml/curves.py": "def exact_curve():\n    from mpt_lml import masks\n",
    "src/mpt_lml/plots.py": "import mpt_lml.curves as c\n",
    "src/mpt_lml/models/__init__.py": "from mpt_lml.models.ppca import PPCA\n"
    "from mpt_lml.models.vae import VAE\n",
    "src/mpt_lml/models/ppca.py": "class PPCA: ...\n",
    "src/mpt_lml/models/vae.py": "class VAE: ...\n",
    "src/mpt_score/__init__.py": "if TYPE_CHECKING:\n    from mpt_score.pair_scores import pairs\n"
    "    from mpt_score.networks import SymbolBERT\n",
    "src/mpt_score/pair_scores.py": "from mpt_lml import PPCA\ndef pairs(): ...\n",
    "src/mpt_score/networks.py": "class SymbolBERT:\n    path = book_file('results/network')\n",
    "src/mpt_lml/recorded.py": "def load(name): return book_file(f'results/{name}.json')\n",
}
TABLE = {"mpt_lml/recorded", "results/table-1.json"}
FIGURE = {"mpt_lml/recorded", "results/figure-1.json"}
EVERY_RUN = TABLE | FIGURE | {"results/without-code.json"}
NETWORK = {"mpt_score/networks", "results/network/weights.bin", "results/network/README.md"}
ALL = "all"


@pytest.fixture
def sources(tmp_path: Path) -> ChapterSources:
    for name, text in TREE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return ChapterSources(tmp_path)


def short_names(sources: ChapterSources, files: set[Path]) -> set[str]:
    """Without packages' doors and what counts for every chapter."""
    names = {path.relative_to(sources.root).as_posix() for path in files - sources.common}
    names = {name.removeprefix("src/").removeprefix("book/").removesuffix(".py") for name in names}
    return {name for name in names if not name.endswith("/__init__")}


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import torch", set()),
        ("from mpt_lml import PPCA", {"mpt_lml/models/ppca"}),
        ("from mpt_lml.models import VAE", {"mpt_lml/models/vae"}),
        ("from mpt_lml import models\nmodels.VAE()", {"mpt_lml/models/vae"}),
        ("from mpt_lml import models", set()),
        ("from mpt_lml import models\nf(models)", {"mpt_lml/models/vae", "mpt_lml/models/ppca"}),
        ("from mpt_lml.models import *", {"mpt_lml/models/vae", "mpt_lml/models/ppca"}),
        ("from mpt_lml import curves", {"mpt_lml/curves", "mpt_lml/masks"}),
        ("import mpt_lml.curves", {"mpt_lml/curves", "mpt_lml/masks"}),
        ("import mpt_lml\nmpt_lml.masks.subsets()", {"mpt_lml/masks"}),
        (
            "def f():\n    import mpt_lml.plots",
            {"mpt_lml/plots", "mpt_lml/curves", "mpt_lml/masks"},
        ),
        ("import mpt_score as s\ns.pairs()", {"mpt_score/pair_scores", "mpt_lml/models/ppca"}),
        ("from mpt_score import SymbolBERT", NETWORK),
        ("import mpt_lml as mpt\nmpt.load('table-1')", TABLE),
        ("from mpt_lml import load\nload('figure-1')", FIGURE),
        (
            "import mpt_lml as m\nfor n in ('table-1', 'figure-1'):\n    m.load(n)",
            TABLE | FIGURE,
        ),
        ("import mpt_lml as m\n[m.load(n) for n in ['figure-1']]", FIGURE),
        ("from mpt_lml.recorded import load\nload('of-no-run')", {"mpt_lml/recorded"}),
        ("import mpt_lml as m\nm.load(f'table-{1}')", EVERY_RUN),
        ("import mpt_lml as m\nx = map(m.load, names)", EVERY_RUN),
        ("open('results/network/weights.bin')", {"results/network/weights.bin"}),
        ("%matplotlib inline\nfrom mpt_lml import masks", {"mpt_lml/masks"}),
        ("import importlib", ALL),
        ("import subprocess", ALL),
        ("__import__('mpt_' + 'lml')", ALL),
        ("no Python", ALL),
    ],
)
def test_what_code_depends_on(sources: ChapterSources, code: str, expected: set[str]) -> None:
    files = sources.files_of(code)
    assert sources.common <= files
    if expected == ALL:
        assert files == sources.everything
    else:
        assert short_names(sources, files) == expected


MODULE = """\
from math import pi
FACTOR = 2
OTHER = 3
def area():
    return FACTOR * half()
def half():
    return pi
def unused():
    return OTHER
class Model:
    def score(self):
        return unused()
"""
CODE = "from mpt_lml import shapes as s\ns.area()"


@pytest.mark.parametrize(
    ("before", "after", "counts"),
    [
        ("FACTOR = 2\n", "FACTOR = 2  # why\n", False),
        ("area():\n", "area():\n    'Its area.'\n", False),
        ("FACTOR * half()", "(FACTOR *\n        half())", False),
        ("return OTHER", "return 4", False),
        ("OTHER = 3", "OTHER = 4", False),
        ("return unused()", "return 4", False),
        ("FACTOR * half()", "half()", True),
        ("return pi", "return 3", True),  # of a function that the one in the cell calls
        ("FACTOR = 2", "FACTOR = 3", True),
        ("import pi", "import e as pi", True),
        ("from math import pi", "from math import e, pi", False),
        ("OTHER = 3", "if True:\n    FACTOR = 3", True),  # no plain definition: it counts always
    ],
)
def test_of_a_module_the_code_counts_that_a_cell_reaches(
    tmp_path: Path, before: str, after: str, counts: bool
) -> None:
    module = tmp_path / "src" / "mpt_lml" / "shapes.py"
    module.parent.mkdir(parents=True)
    assert before in MODULE
    codes = []
    for text in (MODULE, MODULE.replace(before, after)):
        module.write_text(text)
        codes.append(ChapterSources(tmp_path).code_that_counts(CODE, {module})[module])
    assert (codes[0] != codes[1]) == counts


def test_a_class_counts_as_a_whole(tmp_path: Path) -> None:
    """Of which class a value is that has a method, the sources do not say."""
    module = tmp_path / "src" / "mpt_lml" / "shapes.py"
    module.parent.mkdir(parents=True)
    module.write_text(MODULE)
    sources = ChapterSources(tmp_path)
    (code,) = sources.code_that_counts("import mpt_lml\nmpt_lml.shapes.Model()", {module}).values()
    assert "FunctionDef(name='unused'" in code
    assert "FunctionDef(name='area'" not in code


def test_pins_and_the_packages_data_count_for_every_chapter(sources: ChapterSources) -> None:
    names = {path.name for path in sources.common}
    assert names == {"constraints.txt", "book.mplstyle"}


def test_a_file_that_came_went_or_changed_is_named() -> None:
    before = {"same": "1", "other": "1", "gone": "1"}
    now = {"same": "1", "other": "2", "new": "1"}
    assert changes(before, now) == ["gone", "new", "other"]


# -- the book itself ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def depends(book: Book) -> dict[str, set[str]]:
    sources = ChapterSources(book.root)
    return {page.name: set(sources.hashes(page)) for page in book.chapters}


BOOK = pytest.mark.xdist_group("chapter sources")  # they are read once, by one worker


@BOOK
@pytest.mark.parametrize(
    ("path", "written"),
    [
        ("src/mpt_score/quantities/pair_scores.py", ("mpt_score.pairs(",)),
        (
            "src/mpt_score/networks/symbol_bert.py",
            ("SymbolBERT", 'load("known-language"'),
        ),
        ("book/results/table-1.json", ('load("table-1")',)),
        ("book/results/figure-2.json", ('load("figure-2")',)),
        ("book/results/scoring.json", ('load("scoring")',)),
    ],
)
def test_a_chapter_depends_on_a_file_if_its_cells_use_it(
    book: Book, depends: dict[str, set[str]], path: str, written: tuple[str, ...]
) -> None:
    assert (book.root / path).is_file()
    users = [
        page.name for page in book.chapters if any(w in page.path.read_text() for w in written)
    ]
    assert users
    assert [name for name, files in depends.items() if path in files] == users


@BOOK
def test_nearly_every_chapter_depends_on_the_masks_and_none_on_the_command(
    depends: dict[str, set[str]],
) -> None:
    assert sum("src/mpt_lml/masks.py" in files for files in depends.values()) > 15
    assert not any("src/mpt_score/command.py" in files for files in depends.values())


@BOOK
def test_the_weights_of_a_loaded_network_count(depends: dict[str, set[str]]) -> None:
    assert "book/results/known_language.safetensors" in depends["11-known-language"]
