"""The functions of the page "Which number should I report?", executed as a reader who copies them."""

import re
from pathlib import Path
from typing import Any

import torch

TEXT = (Path(__file__).parents[2] / "book" / "scoring-guide.md").read_text(encoding="utf-8")
CODE = re.findall(r"```python\n(.*?)```", TEXT.partition("(sec-any-model)=")[2], re.DOTALL)
PAGE: dict[str, Any] = {"torch": torch}
exec("\n".join(CODE), PAGE)
