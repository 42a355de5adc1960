"""Texts as rows of token ids, and masks of exact sizes on them."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from mpt_lml.checks import Within, check, checked
from mpt_lml.masks import ranks_of
from mpt_score.errors import TextError
from mpt_score.networks.kinds import Tokenizer, require_ids

__all__ = ["Tokens", "encode"]


@checked
@dataclass(frozen=True, eq=False)
class Tokens:
    """Texts of several lengths; what lies behind a text's end is padding.

    They are on the CPU, where text is tokenized; tensors from elsewhere are brought there.

    Args:
        ids: token ids, (N, L).
        types: 0 for the first text of a pair, 1 for the second, (N, L).
        maskable: the word pieces that are scored, (N, L): no special tokens and no padding. An
            unknown token is shown and not scored: which word it stands for is lost.
        lengths: tokens of each text, special ones counted, padding not, (N,).

    Raises:
        ValueError: for a text without a token to score, and for one to score in the padding.

    >>> ids, maskable = torch.zeros(2, 3).long(), torch.ones(2, 3).bool()
    >>> Tokens(ids, ids, maskable, torch.tensor([3, 3])).num_features
    tensor([3, 3])
    """

    ids: Int[Tensor, "N L"]
    types: Int[Tensor, "N L"]
    maskable: Bool[Tensor, "N L"]
    lengths: Int[Tensor, " N"]

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, getattr(self, field.name).cpu())
        width = self.ids.shape[1]
        is_below = min(self.ids.min(), self.types.min()) < 0 or self.lengths.min() < 1
        if is_below or self.lengths.max() > width:
            raise ValueError("ids and types must count from 0, lengths from 1 to L.")
        is_padding = torch.arange(width) >= self.lengths[:, None]
        row = _first_row(self.maskable & is_padding)
        if row is not None:
            raise ValueError(
                f"maskable[{row}] is True behind the {int(self.lengths[row])} tokens of its row, "
                "where there is only padding. Set it to False there."
            )
        row = _first_without(self.maskable)
        if row is not None:
            raise ValueError(
                f"maskable[{row}] is False everywhere: no token to score. Leave it out."
            )

    @classmethod
    def _unchecked(cls, ids: Tensor, types: Tensor, maskable: Tensor, lengths: Tensor) -> "Tokens":
        """Rows that are known to be right: of checked texts, or cut from checked rows."""
        tokens = object.__new__(cls)
        for name, value in zip(
            ("ids", "types", "maskable", "lengths"), (ids, types, maskable, lengths), strict=True
        ):
            object.__setattr__(tokens, name, value)
        return tokens

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def num_features(self) -> Int[Tensor, " N"]:
        """D of each text: its maskable tokens."""
        return self.maskable.sum(dim=1)

    @checked
    def rows(self, chosen: Int[Tensor, " B"]) -> "Tokens":
        """Some rows, cut to the longest of them.

        Args:
            chosen: their numbers, (B,).
        """
        chosen = chosen.cpu()
        require_ids("chosen", chosen, len(self), "Rows are counted from 0.")
        return self._cut(chosen, int(self.lengths[chosen].max()))

    def row(self, number: int) -> "Tokens":
        """One row, cut to its length."""
        return self._cut(slice(number, number + 1), int(self.lengths[number]))

    def _cut(self, rows: Tensor | slice, width: int) -> "Tokens":
        return Tokens._unchecked(
            self.ids[rows, :width],
            self.types[rows, :width],
            self.maskable[rows, :width],
            self.lengths[rows],
        )

    @checked
    def sample_ranks(self, *, generator: torch.Generator) -> Int[Tensor, "N L"]:
        """Ranks 0..D−1 of each row's maskable tokens in a random order; the others come after.

        ``ranks < M`` is then a uniformly random mask of M maskable tokens.

        Args:
            generator: of the orders.
        """
        noise = torch.rand(self.ids.shape, generator=generator, dtype=torch.float64)
        return ranks_of(ranks_of(noise + ~self.maskable))


def _first_row(is_so: Bool[Tensor, "N L"]) -> int | None:
    """The first row in which something is so."""
    rows = is_so.any(dim=1).nonzero()
    return int(rows[0]) if len(rows) else None


def _first_without(is_so: Bool[Tensor, "N L"]) -> int | None:
    """The first row in which nothing is so."""
    return _first_row(~is_so.any(dim=1, keepdim=True))


def as_list(texts: Any) -> Any:
    """A column of pandas or NumPy as a list, and so are rows of token ids; anything else as it is.

    >>> import numpy as np
    >>> as_list(np.array(["He sat.", "She sat."])), as_list([np.array([5, 6]), [7]])
    (['He sat.', 'She sat.'], [[5, 6], [7]])
    """
    if _is_array(texts):
        texts = texts.tolist()
    if isinstance(texts, list | tuple) and any(_is_array(text) for text in texts):
        return [text.tolist() if _is_array(text) else text for text in texts]
    return texts


def _is_array(value: Any) -> bool:
    """Whether it is an array, a column or a number of NumPy or pandas."""
    is_array = hasattr(value, "__array__") and hasattr(value, "tolist")
    return is_array and not isinstance(value, Tensor)


def require_texts(name: str, texts: Any) -> None:
    """Check that ``texts`` are strings, or token ids counted from 0, at least one.

    Args:
        name: of the argument, in messages.
        texts: a sequence of strings, of sequences of ids, or of tensors; or ids (N, L). A column of
            pandas or NumPy is a sequence here.

    Raises:
        TextError: for a string that is no Unicode text.
        ValueError: for no text, and for ids below 0.
        TypeError: for texts of several kinds.
    """
    texts = as_list(texts)
    if isinstance(texts, Tensor):
        check((name, texts, Int[Tensor, "N L"]))
    elif not isinstance(texts, Sequence) or isinstance(texts, str | bytes) or not texts:
        raise ValueError(f"{name} must be a sequence of at least one text, got {texts!r}.")
    if isinstance(texts[0], str):
        for number, text in enumerate(texts):
            if not isinstance(text, str):
                raise TypeError(f"each of {name} must be of type str, got {text!r}, text {number}.")
        _require_unicode(name, texts)
        return
    for ids in texts:
        ids_of_text = ids.tolist() if isinstance(ids, Tensor) else as_list(ids)
        if isinstance(ids_of_text, int):
            raise TypeError(
                f"{name} must be strings, or rows of token ids, got the id {ids_of_text}: one row "
                "alone is passed as [row]."
            )
        check((name, ids_of_text, Sequence[Annotated[int, Within(0)]]))


def _require_unicode(name: str, texts: Sequence[str]) -> None:
    for number, text in enumerate(texts):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            reason = f"is {text!r:.60}, which is no Unicode text ({error.reason})."
            raise TextError.of(
                f"{name}: text", number, f"{reason} Read the file as UTF-8."
            ) from error


if TYPE_CHECKING:
    Strings = Sequence[str]
    Texts = Sequence[str] | Sequence[Sequence[int]] | Sequence[Tensor] | Tensor | Tokens
else:

    def _require_strings(name: str, texts: Any) -> None:
        require_texts(name, texts)
        check((name, as_list(texts), Sequence[str]))

    def _require_texts_or_tokens(name: str, texts: Any) -> None:
        if not isinstance(texts, Tokens):
            require_texts(name, texts)

    Strings = Annotated[Any, _require_strings]
    Texts = Annotated[Any, _require_texts_or_tokens]


@checked
def encode(tokenizer: Tokenizer, first: Strings, second: Sequence[str] | None = None) -> Tokens:
    """Tokenize texts or pairs, whole: [CLS] a [SEP] or [CLS] a [SEP] b [SEP].

    Args:
        tokenizer: of ``transformers``.
        first: the texts, or the first of each pair. None is cut, however long it is.
        second: the second of each pair.

    Raises:
        TextError: for an empty text, for one without a token to score, and for one in which a
            special token is written out, such as [MASK]: nothing can be scored in its place.
        ValueError: for no text, and for another number of second ones.

    >>> from mpt_score.networks import load_small_bert
    >>> _, tokenizer = load_small_bert()
    >>> encode(tokenizer, ["He sat down by the fire."]).num_features
    tensor([7])
    """
    first = as_list(first)
    if second is not None and len(second) != len(first):
        raise ValueError(f"{len(first)} first texts came with {len(second)} second ones.")
    _require_words(first)
    _require_words(second or ())
    pairs = () if second is None else (list(second),)
    rows = tokenizer(
        list(first),
        *pairs,
        verbose=False,
        return_special_tokens_mask=True,
        return_token_type_ids=True,
        return_attention_mask=False,
    )
    lengths = torch.tensor([len(row) for row in rows["input_ids"]])
    # No model is shown what is behind a row's end, so any id will do where there is none for it.
    padding_id = 0 if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    ids = _padded(rows["input_ids"], padding_id)
    types = _padded(rows["token_type_ids"], 0)
    # Special tokens that the tokenizer has put around the text, and no others, are marked.
    maskable = _padded(rows["special_tokens_mask"], 1) == 0
    _require_no_special(tokenizer, ids, maskable)
    if tokenizer.unk_token_id is not None:
        maskable &= ids != tokenizer.unk_token_id
    number = _first_without(maskable)
    if number is not None:
        raise TextError.of("text", number, f"has no word pieces: {first[number][:60]!r}.")
    return Tokens._unchecked(ids, types, maskable, lengths)


def _padded(rows: Sequence[Any], value: int) -> Int[Tensor, "N L"]:
    """Whole numbers as rows of one length, with ``value`` behind the end of the short ones."""
    tensors = [torch.as_tensor(row, dtype=torch.int64) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=value)


def _require_words(texts: Sequence[str]) -> None:
    for number, text in enumerate(texts):
        if not text.strip():
            raise TextError.of("text", number, "is empty and has no word to score.")


def _require_no_special(
    tokenizer: Any, ids: Int[Tensor, "N L"], is_text: Bool[Tensor, "N L"]
) -> None:
    """Refuse texts in which a special token stands; the unknown one is no mark but a word."""
    special_ids = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    is_special = is_text & torch.isin(ids, torch.tensor(sorted(special_ids)).long())
    if is_special.any():
        number, place = is_special.nonzero()[0].tolist()
        token = tokenizer.convert_ids_to_tokens(int(ids[number, place]))
        raise TextError.of(
            "text",
            number,
            f"holds {token}, a special token of the tokenizer, which has no probability: take it out, "
            "or write it in another way.",
        )


def bytes_without_unknown(tokenizer: Any, text: str) -> int:
    """How many bytes a text has in UTF-8 without its unknown tokens, each with the space before it.

    An unknown token has no score. Bits a byte would be the lower the fewer tokens are known if its
    bytes counted.

    Args:
        tokenizer: of ``transformers``. Only a fast one says where in the text its tokens stand.
        text: has an unknown token.

    Returns:
        Their number; 0 where the tokenizer cannot tell.
    """
    if not getattr(tokenizer, "is_fast", False):
        return 0
    encoded = tokenizer(text, return_offsets_mapping=True, add_special_tokens=False, verbose=False)
    num_bytes = 0
    end_of_last = 0
    is_known = True
    for token_id, (_, end) in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True):
        is_known = token_id != tokenizer.unk_token_id
        if is_known:
            num_bytes += len(text[end_of_last:end].encode())
        end_of_last = max(end_of_last, end)
    if is_known:
        num_bytes += len(text[end_of_last:].encode())
    return num_bytes


def encode_ids(
    texts: Sequence[Any] | Tensor,
    special_ids: Int[Tensor, " S"],
    mask_id: int | None = None,
) -> Tokens:
    """Lists of token ids, with their special tokens, as rows.

    Args:
        texts: the ids of each, in any usual form.
        special_ids: ids that are not scored, (S,).
        mask_id: of the mask token, which stands in no text; None where it is not known.

    Raises:
        TextError: for a text of special tokens only, and for one with the mask token.
    """
    rows = [torch.as_tensor(as_list(text), dtype=torch.int64).cpu() for text in texts]
    for number, row in enumerate(rows):
        if mask_id is not None and (row == mask_id).any():
            reason = (
                f"holds the id {mask_id} of the mask token, which has no probability: take it out."
            )
            raise TextError.of("text", number, reason)
    lengths = torch.tensor([len(row) for row in rows])
    ids = _padded(rows, 0)
    is_token = torch.arange(ids.shape[1]) < lengths[:, None]
    maskable = is_token & ~torch.isin(ids, special_ids)
    without = _first_without(maskable)
    if without is not None:
        raise TextError.of("text", without, "has nothing to mask.")
    return Tokens._unchecked(ids, torch.zeros_like(ids), maskable, lengths)
