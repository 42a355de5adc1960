"""What was made of a text once is kept below `_build`, until the text or the tools change."""

import hashlib
import pickle
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
TOOLS = Path(__file__).resolve().parent
EXTENSIONS = TOOLS.with_name("_ext")


def tools() -> str:
    """Hash of Python and of our own tools, by which everything kept is made."""
    digest = hashlib.sha256(sys.version.encode())
    for folder in (TOOLS, EXTENSIONS):
        for file in sorted(folder.glob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()


class Memory(AbstractContextManager["Memory"]):
    """The results of one computation, by the text that it was made of.

    What was not asked for while it was open is forgotten.

    Args:
        root: The folder of the book.
        name: Of the computation.
    """

    def __init__(self, root: Path, name: str) -> None:
        self.file = root / "_build" / "memory" / f"{name}.pickle"
        self.tools = tools()
        self.known: dict[str, Any] = {}
        self.asked: dict[str, Any] = {}

    def __enter__(self) -> "Memory":
        if self.file.is_file():
            made_by, known = pickle.loads(self.file.read_bytes())
            if made_by == self.tools:
                self.known = known
        return self

    def __exit__(self, *exception: object) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_bytes(pickle.dumps((self.tools, self.asked)))

    def of(self, text: bytes, compute: Callable[[], T]) -> T:
        """What ``compute`` returns, which depends on ``text`` alone."""
        key = hashlib.sha256(text).hexdigest()
        if key not in self.asked:
            self.asked[key] = self.known[key] if key in self.known else compute()
        return self.asked[key]
