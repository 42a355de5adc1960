"""Masked language models of ``transformers`` as conditionals (paper, Section 3.2).

The conditionals of a network need not come from one joint distribution; the area is then a mean over
orders of log p_π (Note B), not a log p.
"""

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from mpt_lml.checks import Count, check, checked, require_count
from mpt_lml.models.base import ConditionalModel
from mpt_score.batch_store import BatchStore, digest_of
from mpt_score.networks.devices import require_one_device, to_device_of
from mpt_score.networks.esm import has_token_dropout
from mpt_score.networks.hub import require_transformers
from mpt_score.networks.kinds import Network, Tokenizer, require_ids
from mpt_score.networks.precision import Precision, in_precision, precision_of

_log = logging.getLogger(__name__)

MAX_TOKENS_ON_CPU = 8192
"""The most tokens that go through a network on a CPU at a time."""
MAX_TOKENS_ON_GPU = 65536
"""The same on a GPU; with BERT-base in half precision they need about 2 GB on the way."""
WORKING_BYTES = 2**29
"""The most bytes of logits, or of attention scores that are written out, at a time on a CPU."""
_TIMES_ON_GPU = 4
"""How many times as many bytes they have on a GPU: 2 GB of the 16 of a T4."""
_BYTES_OF_A_LOGIT = 8
"""The bytes of a logit in float32 and of its softmax."""
_BYTES_OF_A_SCORE = 12
"""The bytes of an attention score in float32, of its softmax and of its product with a mask."""
_USUAL_HEADS = 12
"""The heads of attention where a configuration does not say how many: BERT-base's."""


@final
class MaskedLM(ConditionalModel):
    """log q(x_j | x_R) of a masked language model for every hidden token j, nats, float64.

    A datum is a row of D word pieces between ``prefix`` and ``suffix`` ([CLS] and [SEP]), which
    are shown to the network and never masked, nor are other ``special_token_ids``.
    :meth:`log_tokens` takes whole rows, of any length and with their special tokens.

    Args:
        network: of ``transformers``, with a masked-LM head.
        mask_token_id: what the network sees at a hidden place.
        num_features: D.
        prefix: token ids in front of each datum.
        suffix: token ids behind each datum.
        special_token_ids: more ids that are never masked.
        precision: of the weights and products. By default that of a network that came in half or
            double precision; else "float32" on a CPU, and on a GPU what it computes fast: "bfloat16"
            from CUDA's compute capability 8 on, "float16" below. Another precision than the
            network's makes a copy of it; the softmax is in float32 always.
        max_tokens: tokens that go through the network at a time; by default 8192 on a CPU and 65536
            on a GPU. Where a GPU's memory is too small for them they are halved, once, which is said.

    Attributes:
        network: the one that is asked, which is the one that was given or its copy.
        max_length: tokens of the longest row that the network has positions for; None without limit.

    Raises:
        TypeError: for a network without a masked-LM head.
        ValueError: for ids that the network has not, and for one on several devices.

    An ESM whose scale changes with the share of hidden tokens is warned of; one that is loaded by its
    folder or name comes without it.

    >>> from mpt_score.networks import load_small_bert
    >>> model = MaskedLM.of(*load_small_bert(), num_features=2)
    >>> model.log_each(torch.tensor([[300, 400]]), torch.tensor([[True, False]])).shape
    torch.Size([1, 2])
    """

    @checked
    def __init__(
        self,
        network: Network,
        mask_token_id: int,
        num_features: Count = 1,
        *,
        prefix: Sequence[int] = (),
        suffix: Sequence[int] = (),
        special_token_ids: Sequence[int] = (),
        precision: Precision | None = None,
        max_tokens: Count | None = None,
    ) -> None:
        _require_masked_lm(network)
        highest_id = network.config.vocab_size - 1
        require_count("mask_token_id", mask_token_id, 0, highest_id)
        several = {"prefix": prefix, "suffix": suffix, "special_token_ids": special_token_ids}
        for name, token_ids in several.items():
            for token_id in token_ids:
                require_count(f"each of {name}", token_id, 0, highest_id)
        self.precision = precision_of(network, precision)
        self.network = in_precision(network, self.precision)
        self.max_length = _longest_row(network)
        self.mask_token_id = mask_token_id
        if max_tokens is None:
            max_tokens = MAX_TOKENS_ON_CPU if self.device.type == "cpu" else MAX_TOKENS_ON_GPU
        self.max_tokens = max_tokens
        self.store: BatchStore | None = None  # of a run that may be stopped
        self.count_passes: Callable[[int], object] | None = None  # of a run that shows its progress
        self._was_out_of_memory = False
        self.special_token_ids = torch.tensor(sorted({mask_token_id, *special_token_ids}))
        self.num_features = num_features
        self._prefix = torch.tensor(list(prefix)).long()
        self._suffix = torch.tensor(list(suffix)).long()
        has_types = "token_type_ids" in signature(network.forward).parameters
        self._takes_types = has_types and getattr(network.config, "type_vocab_size", 0) > 1
        length = len(prefix) + num_features + len(suffix)
        self._pairs_at_once = max(1, max_tokens // length)

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        device: torch.device = self.network.device
        return device

    @classmethod
    @checked
    def of(
        cls, network: Network, tokenizer: Tokenizer, num_features: Count = 1, **options: Any
    ) -> "MaskedLM":
        """``network`` with the mask token, special tokens and frame of its ``tokenizer``.

        Args:
            network: as of the class.
            tokenizer: the one that was saved with it.
            num_features: D.
            options: keywords of the class.

        Raises:
            ValueError: for a tokenizer without a mask token, or of another network.
            TypeError: for an unknown option.
        """
        if tokenizer.mask_token_id is None:
            kind = type(tokenizer).__name__
            raise ValueError(f"this {kind} has no mask token. Use the tokenizer of a masked model.")
        highest_id = max(tokenizer.get_vocab().values())
        vocab_size = getattr(network.config, "vocab_size", 0)
        if highest_id >= vocab_size:
            raise ValueError(
                f"the tokenizer has ids up to {highest_id}, the network {vocab_size} "
                "tokens: they do not belong together. Name the tokenizer saved with the network."
            )
        first = tokenizer.cls_token_id
        last = tokenizer.eos_token_id if tokenizer.sep_token_id is None else tokenizer.sep_token_id
        defaults = {
            "prefix": () if first is None else (first,),
            "suffix": () if last is None else (last,),
            "special_token_ids": tokenizer.all_special_ids,
        }
        return cls(network, tokenizer.mask_token_id, num_features, **(defaults | options))

    def require_data(self, x: Tensor) -> None:
        check(("x", x, Int[Tensor, "N D"]), D=self.num_features)
        require_ids("x", x, self.network.config.vocab_size)

    @checked
    def log_tokens(
        self,
        ids: Int[Tensor, "N L"],
        mask: Bool[Tensor, "N L"],
        *,
        types: Int[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N L"]:
        """log q(x_j | x_R) of whole rows, each under its own mask.

        Args:
            ids: rows of one length, special tokens included, (N, L).
            mask: (N, L), boolean; True means masked.
            types: 0 for the first sentence of a pair, 1 for the second, (N, L), for networks that
                tell them apart.

        Returns:
            Nats, (N, L), float64, where the data are; 0 where not masked.

        Raises:
            ValueError: for rows that are too long or hold ids the network has not, and for masks that
                hide a special token.
        """
        answers = self.ask(ids, torch.arange(len(ids)), mask, types)()
        return to_device_of(ids, answers)

    @checked
    @torch.no_grad()
    def ask(
        self,
        ids: Int[Tensor, "B L"],
        row: Int[Tensor, " R"],
        mask: Bool[Tensor, "R L"],
        types: Int[Tensor, "B L"] | None = None,
        *,
        wanted: Bool[Tensor, "R L"] | None = None,
        same: Int[Tensor, " R"] | None = None,
    ) -> Callable[[], Float[Tensor, "R L"]]:
        """log q(x_j | x_R) of R masked rows, each of them one of B rows of one length.

        On a GPU this only queues the work: nothing waits for the card before the answer is fetched, so
        that the next masks can be made meanwhile.

        Args:
            ids: rows of one length, special tokens included, (B, L).
            row: which of the B rows each masked row is, (R,).
            mask: what is hidden in it, (R, L), boolean; True means masked.
            types: as of :meth:`log_tokens`, (B, L).
            wanted: of the hidden tokens those whose log q is read, (R, L); by default all. Of the
                others the vocabulary head is not asked.
            same: a number for each masked row, equal where what is shown and hidden is, counted from 0
                in the order of the first of each, (R,). Equal ones go through the network once. By
                default all differ.

        Returns:
            A function without arguments that waits for the answers: nats, (R, L), float64, on the CPU;
            0 where not wanted.

        Raises:
            ValueError: as :meth:`log_tokens`, and for a row that is not there.
            torch.OutOfMemoryError: where half of ``max_tokens`` is too much, too.

        >>> from mpt_score.networks import load_small_bert
        >>> model = MaskedLM.of(*load_small_bert())
        >>> mask = torch.tensor([[False, True, True, False], [False, True, False, False]])
        >>> answers = model.ask(torch.tensor([[2, 300, 400, 3]]), torch.tensor([0, 0]), mask)
        >>> answers().shape
        torch.Size([2, 4])
        """
        ids, row, mask = ids.cpu(), row.cpu(), mask.cpu()
        wanted = mask if wanted is None else wanted.cpu()
        types = types.cpu() if types is not None and self._takes_types else None
        self._require_rows(ids, row, mask, types)
        same = torch.arange(len(row)) if same is None else same.cpu()
        first = first_of_each(same)
        # Which places are wanted is found here: on a GPU their number would have to be waited for.
        number, place = wanted.nonzero().T
        place_among_all, in_order = (same[number] * ids.shape[1] + place).sort(stable=True)
        number, place = number[in_order], place[in_order]
        places, num_tokens = place_among_all.unique_consecutive(return_counts=True)
        num_places = torch.bincount(places // ids.shape[1], minlength=len(first))
        rows = _RowsOnDevice(
            ids=self._to_device(ids),
            types=None if types is None else self._to_device(types),
            row=self._to_device(row[first]),
            mask=self._to_device(mask[first]),
            places=self._to_device(places),
            first_places=functional.pad(num_places.cumsum(dim=0), (1, 0)).tolist(),
            most_places=int(num_places.max()),
            tokens=self._to_device(ids[row[number], place]),
            place_of_token=self._to_device(torch.arange(len(places)).repeat_interleave(num_tokens)),
            first_tokens=functional.pad(num_tokens.cumsum(dim=0), (1, 0)).tolist(),
        )
        asked = digest_of(ids, row, mask, wanted, types, same) if self.store else ""
        answers = self._log_tokens_in_batches(rows, asked)

        def fetch() -> Tensor:
            values = torch.zeros(mask.shape, dtype=torch.float64)
            if answers:
                # Made double here: Apple's GPUs have no float64.
                values[number, place] = torch.cat(answers).cpu().double()
            return values

        return fetch

    def _to_device(self, value: Tensor) -> Tensor:
        """A copy where the network is; from pinned memory the processor need not wait for it."""
        if self.device.type == "cuda":
            value = value.pin_memory()
        return value.to(self.device, non_blocking=True)

    @contextmanager
    def _evaluation_context(self, length: int) -> Iterator[None]:
        """The network as it answers rows of one length."""
        _choose_attention(self.network, length)
        with ExitStack() as settings:
            settings.enter_context(_evaluation_mode(self.network))
            if self.device.type == "cuda":
                # Not cuDNN's attention: it makes a plan for each new shape, of some 30 ms.
                others = [
                    SDPBackend.FLASH_ATTENTION,
                    SDPBackend.EFFICIENT_ATTENTION,
                    SDPBackend.MATH,
                ]
                settings.enter_context(sdpa_kernel(others))
            yield

    def _log_tokens_in_batches(self, rows: "_RowsOnDevice", asked: str) -> list[Tensor]:
        """As many rows at a time as there is memory for; equally many, but the last.

        What :attr:`store` has about the masked rows of the digest ``asked`` is not computed again.
        """
        num_rows, length = rows.mask.shape
        answers = []
        start = 0
        with self._evaluation_context(length):
            while start < num_rows:
                stop = min(num_rows, start + self._rows_at_once(rows))
                try:
                    if rows.first_places[start] < rows.first_places[stop]:
                        compute = partial(self._log_tokens_of_rows, rows, slice(start, stop))
                        if self.store is None:
                            answers.append(compute())
                        else:
                            answer = self.store.answer(f"{asked} {start}:{stop}", compute)
                            answers.append(answer.to(self.device))
                    start = stop
                except torch.OutOfMemoryError as error:
                    self._halve_max_tokens(stop - start, length, error)
        return answers

    @property
    def _working_bytes(self) -> int:
        return WORKING_BYTES if self.device.type == "cpu" else _TIMES_ON_GPU * WORKING_BYTES

    def _rows_at_once(self, rows: "_RowsOnDevice") -> int:
        length = rows.mask.shape[1]
        bounds = [self.max_tokens // length]
        config = self.network.config
        attention = getattr(config, "_attn_implementation", None) or ""
        if not attention.startswith(("sdpa", "flash")):  # scores are written to memory
            heads = getattr(config, "num_attention_heads", None) or _USUAL_HEADS
            bounds.append(self._working_bytes // (_BYTES_OF_A_SCORE * heads * length**2))
        if type(self.network).__name__ not in _LAST_LAYER_IS_LAST:  # all logits of a batch at once
            bytes_of_a_row = _BYTES_OF_A_LOGIT * config.vocab_size * max(1, rows.most_places)
            bounds.append(self._working_bytes // bytes_of_a_row)
        return max(1, min(bounds))

    def _halve_max_tokens(self, num_rows: int, length: int, error: torch.OutOfMemoryError) -> None:
        num_tokens = num_rows * length
        if self._was_out_of_memory or num_rows == 1:
            raise torch.OutOfMemoryError(
                f"the GPU has no memory for {num_rows} rows of {length} tokens at a time. Give a "
                "smaller max_tokens (--max-tokens), precision='bfloat16' or 'float16' "
                "(--precision), or shorter texts; or free what else is on the GPU."
            ) from error
        self._was_out_of_memory = True
        self.max_tokens = max(length, num_tokens // 2)
        _log.warning(
            "the GPU has no memory for %d tokens at a time; from here on it gets %d. "
            "max_tokens=%d (--max-tokens) asks for that from the start.",
            num_tokens,
            self.max_tokens,
            self.max_tokens,
        )

    def _log_tokens_of_rows(self, rows: "_RowsOnDevice", some: slice) -> Tensor:
        """log q of the tokens that are wanted of some rows, on the network's device."""
        row = rows.row[some]
        ids = rows.ids.index_select(0, row)
        corrupted = ids.masked_fill(rows.mask[some], self.mask_token_id)
        first, last = rows.first_places[some.start], rows.first_places[some.stop]
        places = rows.places[first:last] - some.start * ids.shape[1]
        inputs = {}
        if rows.types is not None:
            inputs["token_type_ids"] = rows.types.index_select(0, row)
        states, head = _states_and_head(self.network, corrupted, places, **inputs)
        # Of so many places that their logits fit into the memory that is meant for them.
        num_places = self._working_bytes // (_BYTES_OF_A_LOGIT * self.network.config.vocab_size)
        answers = []
        for few_states in states.split(max(1, num_places)):
            logits = head(few_states)
            if logits.dtype != torch.float64:
                logits = logits.float()  # as the sum over a vocabulary needs it
            last = first + len(few_states)
            tokens = slice(rows.first_tokens[first], rows.first_tokens[last])
            place_of_token = rows.place_of_token[tokens] - first
            answers.append(logits.log_softmax(dim=1)[place_of_token, rows.tokens[tokens]])
            first = last
        if self.count_passes is not None:
            self.count_passes(len(row))
        return torch.cat(answers)

    @torch.no_grad()
    def _log_values(self, x: Tensor, mask: Tensor) -> Float[Tensor, "B D V"]:
        """In the network's precision: V of them a token leave no room for more."""
        rows, hidden = self._framed(x, mask)
        self._require_rows(rows, torch.arange(len(rows)), hidden, None)
        corrupted = rows.masked_fill(hidden, self.mask_token_id)
        with self._evaluation_context(rows.shape[1]):
            logits = masked_logits(self.network, corrupted.to(self.device), hidden.to(self.device))
        # In single precision at least, as the sum over a vocabulary needs it.
        logits = logits if logits.dtype == torch.float64 else logits.float()
        log_probabilities = logits.log_softmax(dim=1)
        values = log_probabilities.new_zeros(*mask.shape, log_probabilities.shape[1])
        values[mask.to(self.device)] = log_probabilities
        return to_device_of(x, values)

    def _framed(self, x: Tensor, mask: Tensor) -> tuple[Int[Tensor, "B L"], Bool[Tensor, "B L"]]:
        """Data as whole rows, between prefix and suffix, and where they are hidden; on the CPU."""
        before = self._prefix.expand(len(x), -1)
        after = self._suffix.expand(len(x), -1)
        rows = torch.cat([before, x.cpu(), after], dim=1)
        return rows, functional.pad(mask.cpu(), (before.shape[1], after.shape[1]))

    def _log_each(self, x: Tensor, mask: Tensor) -> Tensor:
        rows, hidden = self._framed(x, mask)
        values = self.ask(rows, torch.arange(len(rows)), hidden)()
        start = len(self._prefix)
        return to_device_of(x, values[:, start : start + self.num_features])

    def _require_rows(self, ids: Tensor, row: Tensor, mask: Tensor, types: Tensor | None) -> None:
        if self.max_length is not None and ids.shape[1] > self.max_length:
            raise ValueError(
                f"rows of {ids.shape[1]} tokens are longer than the model's {self.max_length} "
                "positions. Leave them out or split them; they are not cut."
            )
        require_ids("ids", ids, self.network.config.vocab_size)
        require_ids("row", row, len(ids), "It is the number of a row of ids.")
        if types is not None:
            require_ids("types", types, self.network.config.type_vocab_size)
        is_special = torch.isin(ids, self.special_token_ids)
        if is_special.any():
            hidden_special = (is_special[row] & mask).nonzero()
            if len(hidden_special):
                number, place = hidden_special[0].tolist()
                token_id = int(ids[row[number], place])
                raise ValueError(f"token {token_id} is special and may not be masked.")


@dataclass(frozen=True)
class _RowsOnDevice:
    """R different masked rows of B rows, with M tokens wanted at Q places, on the network's device."""

    ids: Int[Tensor, "B L"]
    types: Int[Tensor, "B L"] | None
    row: Int[Tensor, " R"]  # which of the B it is
    mask: Bool[Tensor, "R L"]
    places: Int[Tensor, " Q"]  # among R L
    first_places: list[int]  # which of them is the first of each masked row; and Q
    most_places: int  # of one masked row
    tokens: Int[Tensor, " M"]  # by their places
    place_of_token: Int[Tensor, " M"]  # which of the Q places each stands at
    first_tokens: list[int]  # which of them is the first of each place; and M


def first_of_each(numbers: Int[Tensor, " R"]) -> Int[Tensor, " U"]:
    """The place of the first of each number; they are counted from 0 in the order of their first."""
    highest_before = functional.pad(numbers.cummax(dim=0).values, (1, 0), value=-1)[:-1]
    return (numbers > highest_before).nonzero().flatten()


@contextmanager
def _evaluation_mode(network: Any) -> Iterator[None]:
    """No dropout while the block runs; what was training before goes on with it.

    A network that is in evaluation mode already is left alone: to set the mode of each of its modules
    takes longer than a small one needs for a short text.
    """
    in_training = [module for module in network.modules() if module.training]
    if in_training:
        network.eval()
    try:
        yield
    finally:
        for module in in_training:
            module.training = True


def masked_logits(
    network: Any, ids: Int[Tensor, "N L"], where: Bool[Tensor, "N L"], **inputs: Any
) -> Float[Tensor, "M V"]:
    """Logits of the tokens at ``where`` only, in row-major order.

    Args:
        network: of ``transformers``, with a masked-LM head.
        ids: what it sees, (N, L).
        where: which logits are wanted, (N, L), boolean; M of them.
        inputs: more that the network takes.

    Returns:
        Logits, (M, V).
    """
    places = where.flatten().nonzero().flatten()
    states, head = _states_and_head(network, ids, places, **inputs)
    return head(states)


_LAST_LAYER_IS_LAST = (
    "AlbertForMaskedLM",
    "BertForMaskedLM",
    "CamembertForMaskedLM",
    "DistilBertForMaskedLM",
    "ElectraForMaskedLM",
    "MPNetForMaskedLM",
    "ModernBertForMaskedLM",
    "RobertaForMaskedLM",
    "XLMRobertaForMaskedLM",
)
"""The networks whose logits are the output embeddings of the last states, and nothing else."""
_LIKE_BERT = (
    "BertForMaskedLM",
    "CamembertForMaskedLM",
    "RobertaForMaskedLM",
    "XLMRobertaForMaskedLM",
)


def _states_and_head(
    network: Any, ids: Int[Tensor, "N L"], places: Int[Tensor, " M"], **inputs: Any
) -> tuple[Float[Tensor, "M H"], Callable[[Tensor], Tensor]]:
    """What a network's last layer is given at some of the N L places, and that layer.

    It is most of a small network's arithmetic, and its logits most of its memory; so it is applied to
    the places that are asked for, and, where it is known to be the last, to as many at a time as the
    caller likes. Of other networks the states are the logits of these places, and the layer leaves them
    as they are.

    After the last attention places no longer meet, so in networks of BERT's and ModernBERT's form the
    feed-forward block too is spent on ``places``.
    """
    states = []

    def gathered(value: Tensor) -> Tensor:
        # Two axes: they were gathered in the last block.
        return value if value.ndim == 2 else value.flatten(0, 1).index_select(0, places)

    def gather(_: Any, values: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(gathered(value) for value in values)

    def scatter(_: Any, __: Any, value: Tensor) -> Tensor:
        # The sum with the residual needs the shape of all positions.
        everywhere = value.new_zeros(ids.numel(), value.shape[-1])
        return everywhere.index_copy(0, places, value).view(*ids.shape, -1)

    def keep(_: Any, values: tuple[Tensor, ...]) -> Tensor:
        states.append(gathered(values[0]))
        return states[0][:0]  # the caller asks for the logits

    kind = type(network).__name__
    last_layer = network.get_output_embeddings()
    with ExitStack() as hooks:
        if kind in _LIKE_BERT and not network.config.chunk_size_feed_forward:
            after_attention = network.base_model.encoder.layer[-1].attention.output
            hooks.enter_context(after_attention.register_forward_pre_hook(gather))
        if kind == "ModernBertForMaskedLM":
            last_block = network.model.layers[-1]
            hooks.enter_context(last_block.mlp_norm.register_forward_pre_hook(gather))
            hooks.enter_context(last_block.mlp.register_forward_hook(scatter))
            hooks.enter_context(network.model.final_norm.register_forward_pre_hook(gather))
        if kind in _LAST_LAYER_IS_LAST:
            hooks.enter_context(last_layer.register_forward_pre_hook(keep))
        elif last_layer is not None:
            hooks.enter_context(last_layer.register_forward_pre_hook(gather))
        logits = network(input_ids=ids, **inputs).logits
    if states:
        return states[0], last_layer
    # A few have no last layer of that name; Perceiver answers for places behind the row's end, too.
    return gathered(logits if logits.ndim == 2 else logits[:, : ids.shape[1]]), nn.Identity()


def _choose_attention(network: Any, length: int) -> None:
    """Give a BigBird its sparse attention where rows are long enough for it.

    It goes over to full attention at the first row that is not, and keeps that for all later ones: the
    score of a long text would depend on what was scored before.
    """
    config = network.config
    if getattr(config, "attention_type", None) != "block_sparse":
        return
    # First and last block, three around each place, and the random ones, with as many to spare.
    longest_full = (5 + 2 * config.num_random_blocks) * config.block_size
    kind = "block_sparse" if length > longest_full else "original_full"
    network.base_model.set_attention_type(kind)


def _longest_row(network: Any) -> int | None:
    """RoBERTa's kind counts positions from behind the padding's: 514 of them are 512 tokens."""
    for name, module in network.named_modules():
        padding = getattr(module, "padding_idx", None)
        if name.endswith(".position_embeddings") and padding is not None:
            return len(module.weight) - padding - 1  # I-BERT's has no other name for their number
    return getattr(network.config, "max_position_embeddings", None)


def _require_masked_lm(network: Any) -> None:
    """Refuse what ``transformers`` does not list among its masked language models."""
    require_transformers()
    from transformers import MODEL_FOR_MASKED_LM_MAPPING

    # Not all that are listed: to look at them would import every one.
    config_class: Any = type(getattr(network, "config", None))
    masked_model: Any = MODEL_FOR_MASKED_LM_MAPPING.get(config_class, None)
    if type(network) is not masked_model or getattr(network.config, "is_decoder", False):
        raise TypeError(
            f"network must be a transformers model with a masked-LM head, such as BertForMaskedLM, "
            f"got {type(network).__name__}. An encoder alone cannot say log p of a hidden token, a "
            "causal model (or config.is_decoder) not given what stands on both sides."
        )
    require_one_device(network)
    _require_repeatable(network)
    if has_token_dropout(network):
        warnings.warn(
            "this ESM multiplies what it sees by 0.88 / (1 - hidden share): by 8.8 where 90 % are "
            "hidden, by 1 in training. mpt_score.networks.constant_scale(network) takes that out.",
            stacklevel=4,  # past the check of arguments and the class: where the model is made
        )


def _require_repeatable(network: Any) -> None:
    """Refuse what says something else of the same row the next time, or beside other rows."""
    config = network.config
    num_landmarks = getattr(config, "num_landmarks", None)
    reason = None
    if "lsh" in (getattr(config, "attn_layers", None) or ()):
        reason = "groups tokens by random hashes (attn_layers has 'lsh')"
    elif not getattr(config, "use_expectation", True):
        reason = "groups tokens by random hashes (use_expectation is false)"
    elif num_landmarks not in (None, getattr(config, "segment_means_seq_len", None)):
        # As many landmarks as places is plain attention; with fewer, the inverse that it approximates
        # starts from a maximum over all rows of a batch.
        reason = (
            f"approximates attention by {num_landmarks} landmarks, so that what it says of a row depends "
            f"on the other rows of its batch (num_landmarks = segment_means_seq_len = "
            f"{config.segment_means_seq_len} is attention without landmarks)"
        )
    if reason is not None:
        raise TypeError(
            f"this {type(network).__name__} {reason}: a text has no score of its own that can be "
            "repeated. Use another network."
        )
