"""What is wrong with a text, and with which."""


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
