"""Chains of amino acids as texts: one letter a residue, one token a letter.

A module of its own, as it brings ``transformers``, which takes seconds.
"""

from collections.abc import Sequence
from typing import Any

from tokenizers import Regex, pre_tokenizers
from transformers import BertTokenizer

from mpt_score.errors import TextError

RESIDUES = "ACDEFGHIKLMNPQRSTVWY"
"""The twenty amino acids by their letters, in the order of AntiBERTy's vocabulary."""
VOCABULARY = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *RESIDUES)
"""AntiBERTy's 25 tokens, by id."""
FURTHER_LETTERS = "BOUXZ"
"""The letters that ESM knows beside the twenty: three ambiguous codes, and two rare residues."""
_AMBIGUOUS = {
    "B": "which stands for D or N",
    "J": "which stands for I or L",
    "X": "which stands for any residue",
    "Z": "which stands for E or Q",
}
_GAPS = "-.~"
_END = "*"
_MOST_TOKENS = 64
"""Of a tokenizer of residues; ESM's has 33. To look into the vocabularies of others would take long."""
_SEPARATORS = ",;:/|+\\"


class ResidueTokenizer(BertTokenizer):
    """BERT's tokenizer for chains of residues: "EVQL" and "E V Q L" are the same four tokens.

    AntiBERTy was trained on residues with spaces between; the spaces are no tokens, so that both ways
    of writing show it the same. Nothing is repaired and nothing becomes an unknown token: a text that
    is not one chain of the twenty residues in capitals is refused.

    Args:
        vocabulary: the tokens, by id.
        options: keywords of ``BertTokenizer``.

    >>> ResidueTokenizer()("EVQL")["input_ids"]
    [2, 8, 22, 18, 14, 3]
    """

    def __init__(self, vocabulary: tuple[str, ...] = VOCABULARY, **options: Any) -> None:
        ids = {token: number for number, token in enumerate(vocabulary)}
        super().__init__(**{"vocab": ids, "do_lower_case": False, **options})
        one_letter = pre_tokenizers.Split(Regex("."), "isolated")
        self.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.WhitespaceSplit(), one_letter]
        )

    def __call__(self, text: Any, text_pair: Any = None, **options: Any) -> Any:
        """As ``BertTokenizer``; raises :class:`TextError` for what is no chain of residues."""
        for texts in (text, text_pair):
            if texts is not None:
                require_chains([texts] if isinstance(texts, str) else texts)
        return super().__call__(text, text_pair, **options)


def require_chains(texts: list[str]) -> None:
    """Refuse texts that are not one chain each, in the letters of the twenty residues.

    Args:
        texts: the chains.

    Raises:
        TextError: for the first that is not, with what to do.

    >>> require_chains(["EVQL", "D I Q M"])
    >>> require_chains(["EVQ-L"])
    Traceback (most recent call last):
    ...
    mpt_score.errors.TextError: chain 0 has '-' as residue 4, a gap of an alignment. Take the gaps out.
    """
    for number, text in enumerate(texts):
        fault = _fault(text)
        if fault is not None:
            raise TextError.of("chain", number, fault)


def require_residues(tokenizer: Any, texts: Sequence[str]) -> None:
    """Refuse what is no residue in texts for a tokenizer of residues, such as ESM's.

    ESM has tokens for the gaps of an alignment, which have a probability and are no part of a protein;
    and for the letters B, X and Z, which leave open which residue there is. It also knows two rare
    residues, O and U: these stay allowed where the tokenizer has a token for them. A tokenizer of words
    is let through with whatever texts.

    Args:
        tokenizer: A tokenizer of ``transformers``.
        texts: The proteins.

    Raises:
        TextError: For the first text that has such a letter, ``-``, ``.``, ``~`` or ``*``, or that is
            the name line of a FASTA file, with what to do.

    >>> require_residues(ResidueTokenizer(), ["MKTAYIAKQR"])
    >>> require_residues(ResidueTokenizer(), ["MKTA-IAKQR"])
    Traceback (most recent call last):
    ...
    mpt_score.errors.TextError: chain 0 has '-' as residue 5, a gap of an alignment. Take the gaps out.
    """
    if not reads_residues(tokenizer):
        return
    refused = {*_GAPS, _END, *_AMBIGUOUS, *(set(FURTHER_LETTERS) - set(tokenizer.get_vocab()))}
    for number, text in enumerate(texts):
        fault = _name_line(text)
        for place, letter in enumerate("".join(text.split()), start=1):
            if fault is None and letter in refused:
                fault = f"has {letter!r} as residue {place}, {_reason(letter)}"
        if fault is not None:
            raise TextError.of("chain", number, fault)


def reads_residues(tokenizer: Any) -> bool:
    """Whether a tokenizer has a token for each of the twenty residues, and none for other words.

    >>> from mpt_score.networks import load_small_bert
    >>> reads_residues(ResidueTokenizer()), reads_residues(load_small_bert()[1])
    (True, False)
    """
    if len(tokenizer) > _MOST_TOKENS:
        return False
    pieces = set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens)
    # ESM has <null_1> to fill its vocabulary, which is not among its special tokens.
    words = {piece for piece in pieces if piece[0] not in "<["}
    letters = {word for word in words if len(word) > 1 or word.isalpha()}
    return set(RESIDUES) <= letters <= set(RESIDUES + FURTHER_LETTERS)


def _fault(text: str) -> str | None:
    """What keeps a text from being one chain of residues, and what to do; None for a chain."""
    if _name_line(text):
        return _name_line(text)
    pieces = text.split()
    if len(pieces) > 1 and any(len(piece) > 1 for piece in pieces):
        return (
            f"is cut by spaces into {len(pieces)} pieces. Two chains are two texts: score each alone. "
            "One chain is written EVQL or E V Q L."
        )
    for place, letter in enumerate("".join(pieces), start=1):
        if letter not in RESIDUES:
            return f"has {letter!r} as residue {place}, {_reason(letter)}"
    return None


def _name_line(text: str) -> str | None:
    """What is wrong with the line above a sequence of a FASTA file; None for other texts."""
    if not text.lstrip().startswith(">"):
        return None
    return "begins with '>', as the name line of a FASTA file does. Give the sequence alone."


def _reason(letter: str) -> str:
    if letter.upper() in RESIDUES:
        return "in lower case. Write residues in capitals, if this is one."
    if letter in _GAPS:
        return "a gap of an alignment. Take the gaps out."
    if letter in _SEPARATORS:
        return "which separates chains. Two chains are two texts: score each alone."
    if letter == _END:
        return "the end of a translation. Take it out."
    remedy = "Give the one that stands there, or leave the chain out."
    if letter in _AMBIGUOUS:
        return f"{_AMBIGUOUS[letter]}. {remedy}"
    return f"none of the twenty residues that the network knows, {RESIDUES}. {remedy}"
