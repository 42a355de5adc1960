"""A model that says log q(x_j | x_R) of tokens, with the tokenizer and the limits it is used with."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mpt_lml.checks import Index, Interval, checked
from mpt_lml.files import digest
from mpt_score import networks
from mpt_score.errors import TextError
from mpt_score.functions import TokenFunction
from mpt_score.networks.devices import to_device_of
from mpt_score.networks.masked_lm import first_of_each
from mpt_score.tokens import Texts, Tokens, as_list, encode, encode_ids

FUNCTION_BYTES = 2**29
"""The most bytes of what a function answers at a time."""
_BYTES_OF_AN_ANSWER = 16
"""The bytes of a log-probability in float64 and of what the function made it from."""


@dataclass(frozen=True)
class Scorer:
    """log q(x_j | x_R) of texts under a model; :func:`~mpt_score.loading.load` makes one.

    Args:
        model: has ``log_tokens(ids, mask, types=)``, as :class:`~mpt_score.MaskedLM`.
        tokenizer: of ``transformers``. Without one texts are lists of token ids.
        max_length: tokens of the longest row, special ones counted; None without limit.
        max_tokens: tokens that go through the model at a time; None where the model sees to it.
        function_name: what a function is called where its results are kept.
        source: the folder, the name on the hub or the ``module:function`` that was loaded; None for
            what came as an object.
        commit: of a name on the hub, the one that was loaded.

    >>> from mpt_score import load
    >>> coin = load(lambda ids, mask: torch.zeros(ids.shape + (2,)).log_softmax(-1))
    >>> coin.log_tokens(torch.tensor([[0, 1]]), torch.tensor([[True, False]])).exp()
    tensor([[0.5000, 1.0000]], dtype=torch.float64)
    """

    model: Any
    tokenizer: Any = None
    max_length: int | None = None
    max_tokens: int | None = None
    function_name: str | None = None
    source: str | None = None
    commit: str | None = None

    def __post_init__(self) -> None:
        if not callable(getattr(self.model, "log_tokens", None)):
            got = type(self.model).__name__
            raise TypeError(
                f"model must have log_tokens, got {got}: mpt_score.load makes a Scorer."
            )

    @property
    def network(self) -> Any:
        """The network of ``transformers`` behind :attr:`model`; ``None`` for a function."""
        return getattr(self.model, "network", None)

    @property
    def says_every_token(self) -> bool:
        """Whether the model says log q of every token at a hidden place, and not only of the text's."""
        return hasattr(self.model, "ask") or isinstance(self.model, TokenFunction)

    @property
    def unknown_id(self) -> int | None:
        """The token that stands for any word, where the tokenizer has one."""
        return getattr(self.tokenizer, "unk_token_id", None)

    @property
    def special_ids(self) -> Int[Tensor, " S"]:
        """Tokens that are not scored, (S,)."""
        of_model = getattr(self.model, "special_token_ids", None)
        if of_model is not None:
            return of_model
        return torch.tensor(getattr(self.tokenizer, "all_special_ids", [])).long()

    @property
    def name(self) -> str:
        """What answers, for a reader: where it was loaded from, with the commit, or its class."""
        if self.source is None:
            return self.function_name or type(self.network or self.model).__name__
        return self.source if self.commit is None else f"{self.source}@{self.commit}"

    @property
    def identity(self) -> dict[str, Any] | None:
        """What decides the numbers besides texts and settings; ``None`` for a nameless function."""
        identity: dict[str, Any] = {"max_length": self.max_length}
        if self.tokenizer is not None:
            words = sorted(self.tokenizer.get_vocab().items())
            identity["tokenizer"] = digest(f"{self.tokenizer.special_tokens_map} {words}", {})
        if self.network is None:
            if self.function_name is None:
                return None
            return {"function": self.function_name, **identity}
        identity["weights"] = networks.fingerprint(self.network)
        source = getattr(self.network.config, "source", None)
        if source is not None:  # version, licence and citation, where the weights came with them
            identity["source"] = source
        identity["device"] = self.network.device.type
        identity["precision"] = self.model.precision
        return identity

    @checked
    def encode(self, texts: Texts) -> Tokens:
        """Texts as rows of tokens.

        Args:
            texts: strings, which need a tokenizer, in a list or a column of pandas or NumPy; or token
                ids with their special tokens, as lists or (N, L); or rows, which are given back. A
                text longer than :attr:`max_length` is encoded whole. Of a function without a
                tokenizer no id is known as special: all are scored, unless rows say which.

        Raises:
            TextError: for an empty text, for one of unknown or special tokens only, for a string in
                which a special token is written out, for a protein with the gaps of an alignment,
                and for token ids among which the tokenizer's mask token is.
            ValueError: for strings without a tokenizer.
        """
        if isinstance(texts, Tokens):
            return texts
        plain: Any = as_list(texts)
        if isinstance(plain[0], str):
            if self.tokenizer is None:
                raise ValueError(
                    "texts are strings: give a tokenizer (--tokenizer, tokenizer=), or token ids."
                )
            from mpt_score.networks.residues import require_residues  # brings transformers

            require_residues(self.tokenizer, plain)
            return encode(self.tokenizer, plain)
        mask_id = getattr(self.tokenizer, "mask_token_id", None)
        return encode_ids(plain, self.special_ids, mask_id)

    @checked
    def is_frame(self, ids: Int[Tensor, "... L"]) -> Bool[Tensor, "... L"]:
        """Which tokens the tokenizer puts around a text: special ones, but for the unknown one.

        Args:
            ids: token ids, (..., L).
        """
        is_special = torch.isin(ids, self.special_ids.to(ids.device))
        if self.unknown_id is None:
            return is_special
        return is_special & (ids != self.unknown_id)

    @checked
    def require_length(self, tokens: Tokens) -> None:
        """Refuse rows that are longer than :attr:`max_length`.

        Args:
            tokens: the rows.

        Raises:
            TextError: for the first that is.
        """
        if self.max_length is None:
            return
        is_long = tokens.lengths > self.max_length
        if is_long.any():
            number = int(is_long.long().argmax())
            reason = (
                f"has {int(tokens.lengths[number])} tokens, the model takes {self.max_length}. "
                "Leave it out or split it; it is not cut."
            )
            raise TextError.of("text", number, reason)

    def ask(
        self,
        ids: Tensor,
        row: Tensor,
        mask: Tensor,
        types: Tensor | None = None,
        *,
        wanted: Tensor | None = None,
        same: Tensor | None = None,
    ) -> Callable[[], Tensor]:
        """As ``MaskedLM.ask``, of a function, too, which has answered when this returns.

        Answers may be infinite or nan; :meth:`fault` says what of it.
        """
        if hasattr(self.model, "ask"):
            return self.model.ask(ids, row, mask, types, wanted=wanted, same=same)
        # A function is shown text where it was tokenized.
        ids, row, mask = ids.cpu(), row.cpu(), mask.cpu()
        types = None if types is None else types.cpu()
        if isinstance(self.model, TokenFunction):
            self.model.try_once(ids[row], mask)
        same = torch.arange(len(row)) if same is None else same
        first = first_of_each(same)
        order = same.argsort(stable=True)
        ends = [0, *same.bincount().cumsum(dim=0).tolist()]
        answers = torch.zeros(mask.shape, dtype=torch.float64)
        start = 0
        for asked in first.split(self._rows_at_once(ids.shape[1])):
            # These go through the model; each answers all that are equal to it.
            equal = order[ends[start] : ends[start + len(asked)]]
            asked_of_equal = same[equal] - start
            ids_of_asked = ids[row[asked]]
            if isinstance(self.model, TokenFunction):
                values = self.model.log_tokens_of(
                    ids[row[equal]], asked_of_equal, ids_of_asked, mask[asked]
                )
            else:
                types_of_asked = None if types is None else types[row[asked]]
                values = self.model.log_tokens(ids_of_asked, mask[asked], types=types_of_asked)
                values = values.cpu()[asked_of_equal]
            answers[equal] = values.double()
            start += len(asked)
        if wanted is not None:
            answers = answers.where(wanted.cpu(), 0.0)
        return lambda: answers

    def _rows_at_once(self, length: int) -> int:
        """Rows that go together, of a model that does not see to it."""
        if self.max_tokens is None:
            return 2**31
        rows = self.max_tokens // length
        vocab_size = getattr(self.model, "vocab_size", None)
        if vocab_size:
            bytes_of_a_row = _BYTES_OF_AN_ANSWER * length * vocab_size
            rows = min(rows, FUNCTION_BYTES // bytes_of_a_row)
        return max(1, rows)

    @checked
    def log_tokens(
        self,
        ids: Int[Tensor, "N L"],
        mask: Bool[Tensor, "N L"],
        types: Int[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N L"]:
        """log q(x_j | x_R) of whole rows, each under its own mask.

        Args:
            ids: rows of one length, special tokens included, (N, L).
            mask: (N, L), boolean; True means masked.
            types: as of :class:`~mpt_score.tokens.Tokens`, (N, L).

        Returns:
            Nats, (N, L), float64, where ``ids`` are; 0 where not masked.

        Raises:
            TextError: where an answer of the model is not finite.
        """
        values = self.ask(ids, torch.arange(len(ids)), mask, types)()
        is_bad = ~values.isfinite()
        if is_bad.any():
            row, place = is_bad.nonzero()[0].tolist()
            value = values[row, place].item()
            reason = self.fault(int(ids[row, place]), place, value)
            raise TextError(f"text {row}: {reason}", row, reason)
        return to_device_of(ids, values)

    @checked
    def fault(
        self, token_id: Index, place: Index, value: Annotated[float, Interval("[-inf,inf]~")]
    ) -> str:
        """What is wrong with an answer that is not finite, and what to do.

        Args:
            token_id: of the token that was hidden.
            place: where in its row it stands.
            value: the model's answer, nats.
        """
        if self.network is not None:
            remedy = "no log-probability. Leave this text out, or try precision='float32'."
        elif value == -torch.inf:
            remedy = (
                f"it gives the id {token_id} probability 0. Is that a mask token? Leave it out."
            )
        else:
            remedy = "no log-probability. Leave this text out, or mend the function."
        return f"the model says {value} of token {place}: {remedy}"
