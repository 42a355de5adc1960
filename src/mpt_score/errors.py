"""What is wrong with a text, and with which."""


class TextError(ValueError):
    """A text, pair or prompt that cannot be scored.

    ``number`` is its place among those that were given, from 0, so that whoever read them from a
    file can name the line.

    >>> TextError("text 3 has nothing to mask.", 3).number
    3
    """

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = number
