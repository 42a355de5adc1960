"""What is wrong with a text, and with which; and what is wrong with none, the end of memory."""

import re

_MEMORY_ENDS = re.compile(
    "allocate memory|out of memory|not enough memory|new thread|size calculation overflow|"
    "multiplication overflow|Overflow when unpacking"
)
"""In messages of PyTorch, which has no type of error for it, but on a GPU."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that there is too little memory for what was asked.

    >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory"))
    True
    >>> is_out_of_memory(RuntimeError("size mismatch"))
    False
    """
    if isinstance(error, MemoryError):
        return True
    is_of_torch = isinstance(error, RuntimeError | TypeError)
    return is_of_torch and _MEMORY_ENDS.search(str(error)) is not None


class TextError(ValueError):
    """A text, pair or prompt that cannot be scored.

    ``number`` is its place among those that were given, from 0, so that whoever read them from a
    file can name the line; ``reason`` says what is wrong without a number, for a sentence that
    begins with that line.

    >>> raise TextError.of("text", 3, "has nothing to mask.")
    Traceback (most recent call last):
    ...
    mpt_score.errors.TextError: text 3 has nothing to mask.
    """

    def __init__(self, message: str, number: int, reason: str | None = None) -> None:
        super().__init__(message)
        self.number = number
        self.reason = reason or message

    @classmethod
    def of(cls, noun: str, number: int, reason: str) -> "TextError":
        """With the message that ``noun``, ``number`` and ``reason`` make."""
        return cls(f"{noun} {number} {reason}", number, reason)
