"""The 23 books of the book's own BERT: brought from where they are published, file by file.

The files, by name, bytes and git blob, are in ``book/results/small_bert/books.csv``; its README says
what is done with them. What comes out has one checksum, that of ``corpus.txt`` in a local folder.
"""

import csv
import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote
from urllib.request import urlopen

from mpt_lml.data.sources import (
    PUBLISHED,
    CorruptDataError,
    DataNotFoundError,
    local_path,
    verified,
)
from mpt_lml.files import book_file, replacing
from mpt_lml.fit import Progress, silent

_CORPUS = PUBLISHED["books"]
_COMMIT = "944882722e9a96fa6cf2739dc2ea757e101f412f"
_ADDRESS = f"https://raw.githubusercontent.com/mlschmitt/classic-books-markdown/{_COMMIT}/"
_SECONDS = 30


def brought_file() -> Path:
    """Where :func:`fetch_books` leaves the corpus: in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "mpt-lml" / _CORPUS["file"]


def fetch_books(*, progress: Progress = silent) -> Path:
    """Bring the 23 public-domain books that ``sentences("books")`` reads, once: 9 MB.

    Nothing is brought where the folder that ``MPT_LML_DATA`` names has them, or an earlier call has.

    Args:
        progress: shows the files as they come.

    Returns:
        The corpus, a file with the published checksum.

    Raises:
        DataNotFoundError: where a file cannot be had.
        CorruptDataError: where one is not the published file.

    >>> fetch_books().name  # doctest: +SKIP
    'corpus.txt'
    """
    path = local_path(_CORPUS["file"])
    if path is not None:
        return path
    path = brought_file()
    if not path.exists():
        listed = book_file("results/small_bert/books.csv").read_text(encoding="utf-8")
        books = list(csv.DictReader(listed.splitlines()))
        texts = [_body(_fetched(book)) + "\n\n" for book in progress(books, "book")]
        content = "".join(texts).encode("utf-8")
        verified(path, _CORPUS["sha256"], "call fetch_books() again", content=content)
        with replacing(path) as partial:
            partial.write_bytes(content)
    return path


def _fetched(book: Mapping[str, str]) -> bytes:
    """One file as it is published, of the git blob that is listed."""
    name = f"{book['author']}/{book['title']}.md"
    try:
        with urlopen(_ADDRESS + quote(name), timeout=_SECONDS) as answer:
            content: bytes = answer.read()
    except OSError as error:
        raise DataNotFoundError(
            f"{name} cannot be had from {_ADDRESS} ({error}). Try again, or put the corpus as "
            f"{_CORPUS['file']} in the folder that MPT_LML_DATA names."
        ) from error
    blob = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
    if blob != book["git blob"]:
        raise CorruptDataError(
            f"{name} is not the published file: its git blob is {blob}, expected "
            f"{book['git blob']} ({len(content)} bytes read). Try again."
        )
    return content


def _body(content: bytes) -> str:
    """The text without its head, which ends with a line of dashes, and without marks of headings."""
    lines = content.decode("utf-8-sig").split("\n")
    head = next(n for n, line in enumerate(lines) if re.fullmatch(r"\s*-{3,}\s*", line))
    text = re.sub(r"^#+\s*", "", "\n".join(lines[head + 1 :]), flags=re.MULTILINE)
    return text.replace("\ufeff", "").strip()
