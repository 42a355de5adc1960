"""Hints at what is likely not meant, said beside a result."""

import unicodedata

_JOINING = frozenset("-‐‑–—'’‘\"“„«([{</\\_#@$€£+=~")
"""After these a word begins without a space: hyphens, apostrophes and quotes, what opens, and signs."""


def missing_space_hint(prompt: str, option: str) -> str | None:
    """What to say where an option of a prompt begins a word without its space; None where it does not.

    A text is the prompt and the option as they stand. "The cake is" and "done" make "isdone", whose
    pieces are others than those of "is done", and so is its score.

    A prompt without any white space is left alone, as a sequence of residues is; so are scripts that
    write no spaces between words.

    Args:
        prompt: ends at the option's place.
        option: follows it directly.

    >>> missing_space_hint("The cake is", "done")
    'prompt and option join to "isdone": begin the option with a space (" done") if it is a word.'
    >>> missing_space_hint("The cake is", " done"), missing_space_hint("The well-", "done")
    (None, None)
    """
    if not prompt or not option or not option[0].isalnum():
        return None
    last = prompt[-1]
    if last.isspace() or last in _JOINING or not any(letter.isspace() for letter in prompt):
        return None
    if _is_wide(last) or _is_wide(option[0]):
        return None
    last_word = prompt.split()[-1]
    first_word = option.split()[0]
    return (
        f'prompt and option join to "{last_word}{first_word}": begin the option with a space '
        f'(" {first_word}") if it is a word.'
    )


def _is_wide(letter: str) -> bool:
    """Of the scripts of China and Japan, mostly, which write words without spaces between."""
    return unicodedata.east_asian_width(letter) in ("W", "F")
