"""Sentences as rows of token ids, and masks of exact sizes on them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from mpt_lml.spec import require, require_count, require_ids
from mpt_score.errors import TextError
from mpt_score.networks.hub import require_transformers

__all__ = ["Tokens", "encode"]

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, eq=False)
class Tokens:
    """Sentences of several lengths; what lies behind a sentence's end is padding.

    ``types`` (N, L) are 0 for the first sentence of a pair, 1 for the second; ``maskable`` (N, L) the
    word pieces, no special tokens and no padding. An unknown token is shown and not scored: which
    word it stands for is lost. ``lengths`` (N,) count special tokens, not padding.

    >>> ids, maskable = torch.zeros(2, 3).long(), torch.ones(2, 3).bool()
    >>> Tokens(ids, ids, maskable, torch.tensor([3, 3])).num_features
    tensor([3, 3])
    """

    ids: Int[Tensor, "N L"]
    types: Int[Tensor, "N L"]
    maskable: Bool[Tensor, "N L"]
    lengths: Int[Tensor, " N"]

    def __post_init__(self) -> None:
        require(vars(self), "int ids N L, int types N L, bool maskable N L, int lengths N")
        low = min(self.ids.min(), self.types.min(), self.lengths.min() - 1)
        if low < 0 or self.lengths.max() > self.ids.shape[1]:
            raise ValueError("ids and types must count from 0, lengths from 1 to L.")
        places = torch.arange(self.ids.shape[1], device=self.ids.device)
        outside = (self.maskable & (places >= self.lengths[:, None])).any(dim=1)
        if outside.any():
            row = int(outside.long().argmax())
            said = f"maskable[{row}] is True behind the {int(self.lengths[row])} tokens of its row"
            raise ValueError(f"{said}, where there is only padding. Set it to False there.")
        bare = ~self.maskable.any(dim=1)
        if bare.any():
            row = int(bare.long().argmax())
            raise ValueError(
                f"maskable[{row}] is False everywhere: no token to score. Leave it out."
            )

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def num_features(self) -> Int[Tensor, " N"]:
        """D of each sentence: its maskable tokens."""
        return self.maskable.sum(dim=1)

    def rows(self, chosen: Int[Tensor, " B"]) -> "Tokens":
        """Some rows, cut to the longest of them."""
        require(locals(), "int chosen N")
        require_ids("chosen", chosen, len(self), "Rows are counted from 0.")
        length = int(self.lengths[chosen].max())
        ids, types = self.ids[chosen, :length], self.types[chosen, :length]
        return Tokens(ids, types, self.maskable[chosen, :length], self.lengths[chosen])

    def sample_ranks(self, *, generator: torch.Generator) -> Int[Tensor, "N L"]:
        """Ranks 0..D−1 of each row's maskable tokens in a random order; the others come after.

        ``ranks < M`` is then a uniformly random mask of M maskable tokens.
        """
        require(locals(), "generator")
        noise = torch.rand(self.ids.shape, generator=generator, dtype=torch.float64)
        return noise.masked_fill(~self.maskable, 2.0).argsort(dim=1).argsort(dim=1)


def train_tokenizer(sentences: Sequence[str], vocab_size: int) -> "PreTrainedTokenizerBase":
    """An uncased WordPiece vocabulary of at most ``vocab_size`` pieces, as BERT's tokenizer.

    The trainer of ``tokenizers`` numbers continuing characters (##a) in another order each time and
    breaks ties by number. Here they are numbered beforehand, so that a text has one vocabulary.
    """
    require_transformers()
    from tokenizers import BertWordPieceTokenizer
    from transformers import BertTokenizer

    require_count("vocab_size", vocab_size, len(SPECIAL_TOKENS) + 1)
    trainer = BertWordPieceTokenizer(lowercase=True)
    normalize = trainer.normalizer.normalize_str
    characters = sorted({each for text in sentences for each in normalize(text)} - {" "})
    first = [*SPECIAL_TOKENS, *(f"##{each}" for each in characters)]
    trainer.train_from_iterator(
        sentences, vocab_size=vocab_size, special_tokens=first, show_progress=False
    )
    pieces = [*SPECIAL_TOKENS, *sorted(set(trainer.get_vocab()) - set(SPECIAL_TOKENS))]
    return BertTokenizer(vocab={piece: n for n, piece in enumerate(pieces)}, do_lower_case=True)


def encode(
    tokenizer: "PreTrainedTokenizerBase",
    first: Sequence[str],
    second: Sequence[str] | None = None,
) -> Tokens:
    """Tokenize sentences or pairs, whole: [CLS] a [SEP] or [CLS] a [SEP] b [SEP].

    Raises ``ValueError`` for no text or an empty one. None is cut, however long it is.

    >>> from mpt_score.networks import load_small_bert
    >>> _, tokenizer = load_small_bert()
    >>> encode(tokenizer, ["He sat down by the fire."]).num_features
    tensor([7])
    """
    require(locals(), "tokenizer PreTrainedTokenizerBase")
    require_texts(first, "first")
    require(locals(), "first* str, second? Sequence, second?* str")
    if second is not None and len(second) != len(first):
        raise ValueError(f"{len(first)} first sentences came with {len(second)} second ones.")
    for name, sentences in (("first", first), ("second", second or ())):
        for number, sentence in enumerate(sentences):
            if not sentence.strip():
                raise TextError(f"sentence {number} is empty: no word to score in {name}.", number)
    pairs = () if second is None else (list(second),)
    wanted = ("special_tokens_mask", "token_type_ids", "attention_mask")
    how: Any = {"padding": True, "padding_side": "right", "return_tensors": "pt", "verbose": False}
    found = tokenizer(list(first), *pairs, **how, **{f"return_{each}": True for each in wanted})
    ids, maskable = found["input_ids"], found["special_tokens_mask"] == 0
    if tokenizer.unk_token_id is not None:
        maskable &= ids != tokenizer.unk_token_id
    if not maskable.any(dim=1).all():
        empty = int(maskable.any(dim=1).long().argmin())
        raise TextError(f"sentence {empty} has no word pieces: {first[empty][:60]!r}.", empty)
    return Tokens(ids, found["token_type_ids"], maskable, found["attention_mask"].sum(dim=1))


def require_texts(texts: Any, name: str = "texts") -> None:
    """Check that ``texts`` are strings, or token ids counted from 0, at least one."""
    if isinstance(texts, Tensor):
        require({name: texts}, f"int {name} N L")
    elif not isinstance(texts, Sequence) or isinstance(texts, str | bytes) or not texts:
        raise ValueError(f"{name} must be a sequence of at least one text, got {texts!r}.")
    for each in [texts] if isinstance(texts[0], str) else texts:
        one = each.tolist() if isinstance(each, Tensor) else each
        require({name: one}, f"{name}* " + ("str" if each is texts else "0.."))
    for number, text in enumerate(texts if isinstance(texts[0], str) else ()):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            said = f"{name}: text {number} is {text!r:.60}, which is no Unicode text"
            raise TextError(f"{said} ({error.reason}). Read the file as UTF-8.", number) from error
