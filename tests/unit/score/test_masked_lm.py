"""Masked language models: the head at masked places, exact twins, tokens, and refusals."""

from __future__ import annotations

import inspect
import math
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from families import FAMILIES, LETTERS, MORE_FAMILIES, SMALL, Family
from models import generator
from other_device import MPS, OtherDevice
from tiny_bert import CLS, MASK, PIECES, SEP, tiny
from tiny_bert import tokenizer as tiny_tokenizer
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertModel,
    BertTokenizer,
    EsmForMaskedLM,
    NystromformerConfig,
    NystromformerForMaskedLM,
    PreTrainedTokenizerFast,
    ReformerConfig,
    ReformerForMaskedLM,
    YosoConfig,
    YosoForMaskedLM,
)

import mpt_score
from mpt_lml import curves, estimators, masks
from mpt_score import MaskedLM, networks, tokens
from mpt_score.batch_store import BatchStore
from mpt_score.networks import masked_lm
from mpt_score.networks.masked_lm import masked_logits


def model(network: torch.nn.Module, num_features: int = 3) -> MaskedLM:
    return MaskedLM(
        network,
        MASK,
        num_features,
        prefix=(CLS,),
        suffix=(SEP,),
        special_token_ids=(0, 1, CLS, SEP),
    )


X = torch.tensor([[5, 6, 7], [10, 11, 7]])


@pytest.mark.parametrize("kind", ["classic", "modern", "distil"])
def test_every_conditional_is_the_full_softmax_at_its_place(kind: str) -> None:
    network = tiny(kind)
    mask = masks.subsets(3)[1:]
    found = model(network).log_conditional(X, mask)
    for p, hidden in enumerate(mask):
        for n, x in enumerate(X):
            shown = [CLS, *(MASK if h else int(v) for v, h in zip(x, hidden, strict=True)), SEP]
            logits = network(input_ids=torch.tensor([shown])).logits[0, 1:4]
            wanted = logits.log_softmax(dim=1)[range(3), x] * hidden
            # Batches of other sizes add up in another order: a few units of float64.
            torch.testing.assert_close(found[p, n], wanted.detach(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", ["classic", "modern"])
def test_the_last_feed_forward_block_runs_at_hidden_places_only(kind: str) -> None:
    network = tiny(kind)
    layers = network.bert.encoder.layer if kind == "classic" else network.model.layers
    blocks = [each.intermediate if kind == "classic" else each.mlp for each in layers]
    seen: list[int] = []
    for block in blocks:
        block.register_forward_pre_hook(lambda _, values: seen.append(values[0][..., 0].numel()))
    ids = torch.randint(5, 12, (4, 6), generator=generator(1))
    where = torch.rand(4, 6, generator=generator(2)) < 0.4
    logits = masked_logits(network, ids, where)
    assert seen == [24, int(where.sum())]
    logits.sum().backward()
    gradients = [each.grad.clone() for each in network.parameters() if each.grad is not None]
    network.zero_grad()
    network(input_ids=ids).logits[where].sum().backward()  # and nothing was left on the network
    assert seen[2:] == [24, 24]
    for found, each in zip(gradients, network.parameters(), strict=True):
        # Sums over 24 places of float64 in another order, values up to about 100.
        torch.testing.assert_close(found, each.grad, rtol=1e-9, atol=1e-9)


def test_a_failed_pass_leaves_no_hook() -> None:
    for kind in ("classic", "modern"):
        network = tiny(kind)
        with pytest.raises(IndexError):
            masked_logits(network, torch.full((2, 4), 999), torch.ones(2, 4).bool())
        counts = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in network.modules()]
        assert sum(counts) == 0


@pytest.mark.parametrize("kind", ["classic", "modern"])
def test_hidden_tokens_do_not_matter_and_shown_ones_do(kind: str) -> None:
    conditionals = model(tiny(kind))
    mask = torch.tensor([[True, False, False]])
    other = X.clone()
    other[:, 0] = 11
    logits = [
        conditionals.log_conditional(torch.tensor([[v, *x[1:].tolist()] for x in X]), mask)[0, :, 0]
        for v in range(5, 12)
    ]
    assert torch.stack(logits).exp().sum(dim=0).max() < 1.0  # specials keep some probability
    shown = X.clone()
    shown[:, 2] = 5
    changed = conditionals.log_conditional(shown, mask) - conditionals.log_conditional(X, mask)
    assert changed[0, :, 0].abs().min() > 1e-4


def test_probabilities_of_all_tokens_add_up_to_one() -> None:
    # A language without special tokens, as in the known-language experiment.
    conditionals = MaskedLM(tiny(), MASK, 2)
    first = [
        conditionals.log_each(torch.tensor([[v, 6]]), torch.tensor([[True, False]]))[0, 0]
        for v in range(len(PIECES))
        if v != MASK
    ]
    shown = torch.tensor([[MASK, 6]])
    rest = conditionals.network(input_ids=shown).logits[0, 0].log_softmax(dim=0)[MASK]
    assert math.isclose(torch.stack(first).exp().sum() + rest.exp().item(), 1.0, rel_tol=1e-10)


def test_curves_and_estimators_take_it() -> None:
    conditionals = model(tiny("modern"))
    curve = curves.exact_curve(conditionals, X)
    by_hand = [
        sum(
            float(conditionals.log_conditional(X, hidden[None])[0].sum()) / size
            for hidden in masks.all_masks(3, size)
        )
        / math.comb(3, size)
        / len(X)
        for size in (1, 2, 3)
    ]
    torch.testing.assert_close(curve.score, torch.tensor(by_hand, dtype=torch.float64))
    estimate = estimators.area(conditionals, X, 4000, generator=generator())
    assert abs(estimate - sum(by_hand)) < 5 * estimate.standard_error


def test_a_long_row_of_a_big_bird_is_scored_alike_before_and_after_a_short_one() -> None:
    sparse = {"attention_type": "block_sparse", "block_size": 8, "num_random_blocks": 1}
    family = MORE_FAMILIES["BigBird"].of_length(80, **sparse)
    conditionals = MaskedLM(family.network().double(), MASK)
    ids = torch.randint(5, 12, (2, 80), generator=generator(1))
    mask = torch.rand(2, 80, generator=generator(2)) < 0.3
    before = conditionals.log_tokens(ids, mask)
    short = conditionals.log_tokens(ids[:, :20], mask[:, :20])
    assert torch.equal(conditionals.log_tokens(ids, mask), before)
    assert torch.equal(conditionals.log_tokens(ids[:, :20], mask[:, :20]), short)
    full = MaskedLM(MORE_FAMILIES["BigBird"].of_length(80).network().double(), MASK)
    assert (full.log_tokens(ids, mask) - before).abs().max() > 1e-3  # it is another attention
    for length, is_sparse in ((56, False), (57, True)):  # 7 blocks of 8 attend to all
        rows, hidden = ids[:, :length], mask[:, :length]
        apart = (full.log_tokens(rows, hidden) - conditionals.log_tokens(rows, hidden)).abs().max()
        assert (apart > 1e-3) == is_sparse, length


MASKS = torch.tensor(
    [[1, 0, 1], [0, 1, 1], [1, 1, 1], [0, 0, 1], [1, 1, 0], [0, 0, 0], [1, 0, 0]]
).bool()
ROW_OF_MASK = torch.tensor([1, 0, 0, 1, 1, 0, 0])


def count_calls(module: torch.nn.Module) -> list[tuple[int, ...]]:
    """The shapes, but for the last axis, of what a module is given from now on."""
    shapes: list[tuple[int, ...]] = []
    module.register_forward_hook(lambda _, given, __: shapes.append(tuple(given[0].shape[:-1])))
    return shapes


@pytest.mark.parametrize("kind", ["classic", "modern", "distil"])
def test_the_vocabulary_does_not_bound_how_many_rows_go_together(kind: str, monkeypatch) -> None:
    network = tiny(kind)
    network.set_attn_implementation("sdpa")
    wanted = MaskedLM(network, MASK).ask(X, ROW_OF_MASK, MASKS)()
    monkeypatch.setattr(masked_lm, "WORKING_BYTES", 8 * len(PIECES) * 3)  # logits of three places
    of_body = count_calls(network.base_model.get_input_embeddings())
    of_head = count_calls(network.get_output_embeddings())
    found = MaskedLM(network, MASK).ask(X, ROW_OF_MASK, MASKS)()
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)  # the same sums in float64
    assert of_body == [(7,)]  # rows
    assert of_head == [(0,), (3,), (3,), (3,), (2,)]  # the first by the network itself


def test_logits_bound_the_rows_of_a_network_whose_head_is_not_known(monkeypatch) -> None:
    network = MORE_FAMILIES["Megatron-BERT"].network().double()
    wanted = MaskedLM(network, MASK).ask(X, ROW_OF_MASK, MASKS)()
    # Of six places: two rows of three.
    vocab_size = network.config.vocab_size
    monkeypatch.setattr(masked_lm, "WORKING_BYTES", 8 * vocab_size * 6)
    monkeypatch.setattr(masked_lm, "_BYTES_OF_A_SCORE", 0.1)
    of_head = count_calls(network.get_output_embeddings())
    found = MaskedLM(network, MASK).ask(X, ROW_OF_MASK, MASKS)()
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    assert of_head == [(4,), (4,), (2,), (1,)]


@pytest.mark.parametrize("family", [FAMILIES["BERT"], MORE_FAMILIES["Megatron-BERT"]])
def test_where_nothing_is_hidden_nothing_is_said(family: Family) -> None:
    conditionals = MaskedLM(family.network(), MASK)
    assert not conditionals.log_tokens(X, torch.zeros(2, 3).bool()).any()


@pytest.mark.parametrize(("attention", "num_batches"), [("eager", 4), ("sdpa", 1)])
def test_attention_bounds_the_rows_where_it_is_written_out(
    attention: str, num_batches: int, monkeypatch
) -> None:
    network = tiny()
    network.set_attn_implementation(attention)
    heads = network.config.num_attention_heads
    monkeypatch.setattr(masked_lm, "WORKING_BYTES", 12 * heads * 3**2 * 2)  # two rows of three
    of_body = count_calls(network.bert.encoder.layer[0].attention.self)
    MaskedLM(network, MASK).ask(X, ROW_OF_MASK, MASKS)()
    assert len(of_body) == num_batches


def test_batches_are_equal_but_for_the_last() -> None:
    network = tiny()
    of_body = count_calls(network.bert.encoder.layer[0].attention.self)
    MaskedLM(network, MASK, max_tokens=10).ask(X, ROW_OF_MASK, MASKS)()
    assert of_body == [(3, 3), (3, 3), (1, 3)]


def without_memory_for(network: torch.nn.Module, num_tokens: int) -> list[int]:
    """Let ``network`` fail as on a card that has no memory for so many tokens; what it is asked."""
    asked: list[int] = []

    def fail(_: Any, given: tuple[torch.Tensor, ...]) -> None:
        asked.append(given[0][..., 0].numel())
        if asked[-1] >= num_tokens:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    network.bert.encoder.register_forward_pre_hook(fail)
    return asked


class TestOutOfMemory:
    def test_batches_are_halved_once(self, caplog: pytest.LogCaptureFixture) -> None:
        wanted = MaskedLM(tiny(), MASK).ask(X, ROW_OF_MASK, MASKS)()
        network = tiny()
        asked = without_memory_for(network, 12)
        conditionals = MaskedLM(network, MASK, max_tokens=1000)
        found = conditionals.ask(X, ROW_OF_MASK, MASKS)()
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
        assert asked == [21, 9, 9, 3]
        assert conditionals.max_tokens == 10
        conditionals.ask(X, ROW_OF_MASK, MASKS)()
        assert asked[4:] == [9, 9, 3]
        (record,) = caplog.records
        assert "no memory for 21 tokens at a time; from here on it gets 10" in record.getMessage()

    @pytest.mark.bad_input
    def test_a_second_time_is_an_error(self) -> None:
        network = tiny()
        without_memory_for(network, 9)
        conditionals = MaskedLM(network, MASK)
        with pytest.raises(torch.OutOfMemoryError, match=r"3 rows of 3 tokens.*smaller max_tokens"):
            conditionals.ask(X, ROW_OF_MASK, MASKS)

    @pytest.mark.bad_input
    def test_a_single_row_cannot_be_halved(self) -> None:
        network = tiny()
        without_memory_for(network, 3)
        with pytest.raises(torch.OutOfMemoryError, match="no memory for 1 rows of 3 tokens"):
            MaskedLM(network, MASK).log_tokens(X[:1], MASKS[:1])


@pytest.mark.parametrize("kind", ["classic", "modern", "distil"])
class TestOnAnotherDevice:
    def test_nothing_waits_before_answers_are_fetched(self, kind: str) -> None:
        network = tiny(kind)
        wanted = MaskedLM(network, MASK).ask(X, ROW_OF_MASK, MASKS)()
        with OtherDevice() as other:
            network.to(other.device)
            conditionals = MaskedLM(network, MASK, precision="float32", max_tokens=10)
            fetch = conditionals.ask(X, ROW_OF_MASK, MASKS)
            assert not other.waits
            found = fetch()
            assert dict(other.waits) == {"cpu": 1}
            assert found.device.type == "cpu"
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)

    @pytest.mark.parametrize("mask_is_there", [False, True])
    @pytest.mark.parametrize("data_are_there", [False, True])
    def test_answers_are_where_the_data_are(
        self, kind: str, data_are_there: bool, mask_is_there: bool
    ) -> None:
        """Wherever the mask is; the network has moved after the model was made."""
        network = tiny(kind)
        conditionals = model(network)
        calls = [
            conditionals.log_each,
            conditionals.log_values,
            conditionals.log_conditional,
            conditionals.mean_log_conditional,
            conditionals.log_tokens,
        ]
        wanted = [call(X[:2], MASKS[:2]) for call in calls]
        with OtherDevice() as other:
            network.to(other.device)
            x = X[:2].to(other.device) if data_are_there else X[:2]
            mask = MASKS[:2].to(other.device) if mask_is_there else MASKS[:2]
            for call, expected in zip(calls, wanted, strict=True):
                found = call(x, mask)
                assert found.device == x.device
                torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=1e-12)

    @pytest.mark.parametrize("data_are_there", [False, True])
    def test_apples_gpus_have_no_double_precision(self, kind: str, data_are_there: bool) -> None:
        network = tiny(kind).float()
        conditionals = model(network)
        wanted = conditionals.log_each(X[:2], MASKS[:2])
        with OtherDevice(MPS) as other:
            network.to(other.device)
            x = X[:2].to(other.device) if data_are_there else X[:2]
            found = conditionals.log_each(x, MASKS[:2])
            assert found.device == x.device
            assert conditionals.log_values(x, MASKS[:2]).device == x.device
            assert found.dtype == (torch.float32 if data_are_there else torch.float64)
            torch.testing.assert_close(found.cpu().double(), wanted, rtol=0, atol=1e-5)


class TestRefusals:
    pytestmark = pytest.mark.bad_input

    def test_no_masked_lm_head(self) -> None:
        encoder = BertModel(tiny().config)
        with pytest.raises(TypeError, match="masked-LM head.*got BertModel"):
            MaskedLM(encoder, MASK)

    def test_parts_on_several_devices(self) -> None:
        network = tiny()
        network.cls.predictions.transform.to("meta")
        with pytest.raises(ValueError, match="on one device, and is on cpu and meta. Move it"):
            MaskedLM(network, MASK)

    def test_no_weights(self) -> None:
        with pytest.raises(ValueError, match="on the device meta: it has no weights"):
            MaskedLM(tiny().to("meta"), MASK)

    def test_attention_by_random_hashes(self) -> None:
        sizes = {"hidden_size": 16, "num_attention_heads": 2, "attention_head_size": 8}
        config = ReformerConfig(vocab_size=12, attn_layers=["local", "lsh"], **sizes)
        config.axial_pos_embds = False
        with pytest.raises(TypeError, match="groups tokens by random hashes"):
            MaskedLM(ReformerForMaskedLM(config), MASK)

    def test_other_random_hashes(self) -> None:
        config = YosoConfig(vocab_size=12, use_expectation=False, **SMALL)
        with pytest.raises(TypeError, match="random hashes .use_expectation is false"):
            MaskedLM(YosoForMaskedLM(config), MASK)

    def test_attention_that_mixes_the_rows_of_a_batch(self) -> None:
        config = NystromformerConfig(
            vocab_size=12, num_landmarks=2, segment_means_seq_len=8, **SMALL
        )
        with pytest.raises(TypeError, match="by 2 landmarks.*depends on the other rows"):
            MaskedLM(NystromformerForMaskedLM(config), MASK)

    def test_no_mask_token(self) -> None:
        from tokenizers import Tokenizer
        from tokenizers.models import WordLevel

        without = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"a": 0}, "a")))
        with pytest.raises(ValueError, match="has no mask token.*Use the tokenizer of a masked"):
            MaskedLM.of(tiny(), without)

    def test_rows_longer_than_the_positions(self) -> None:
        with pytest.raises(ValueError, match="rows of 17 tokens are longer than the model's 16"):
            MaskedLM(tiny(), MASK).log_tokens(torch.full((1, 17), 5), torch.ones(1, 17).bool())

    def test_special_tokens_are_not_masked(self) -> None:
        ids = torch.tensor([[CLS, 5, SEP]])
        with pytest.raises(ValueError, match="token 2 is special and may not be masked"):
            model(tiny()).log_tokens(ids, torch.tensor([[True, True, False]]))
        two = torch.tensor([[5, 6, 7], [CLS, 5, SEP]])
        with pytest.raises(ValueError, match="token 3 is special and may not be masked"):
            model(tiny()).ask(two, torch.tensor([0, 1]), torch.tensor([[False, True, True]] * 2))

    def test_wrong_shapes(self) -> None:
        with pytest.raises(ValueError, match=r"x must have shape \(N, 3\).*got \(2, 2\)"):
            model(tiny()).log_conditional(X[:, :2], masks.all_masks(3, 1))
        with pytest.raises(ValueError, match=r"mask must have shape \(2, 3\), got \(2, 2\)"):
            model(tiny()).log_tokens(X, torch.ones(2, 2).bool())


class TestTheBooksOwn:
    def test_it_is_small_and_comes_with_a_card(self) -> None:
        folder = networks.small_bert_folder()
        names = {path.name for path in folder.iterdir()}
        assert {"model.safetensors", "config.json", "tokenizer.json", "README.md"} <= names
        assert sum(path.stat().st_size for path in folder.iterdir()) <= 8 * 2**20
        about = (folder / "README.md").read_text(encoding="utf-8")
        assert "python -m experiments run small-bert" in about

    def test_it_has_learned_english(self) -> None:
        network, reader = networks.load_small_bert()
        assert next(network.parameters()).dtype == torch.float32
        conditionals = MaskedLM(
            network, MASK, special_token_ids=reader.all_special_ids, precision="float32"
        )
        found = tokens.encode(reader, ["He sat down by the fire.", "He sat down by fire the."])
        hidden = found.maskable & (found.ids == reader.convert_tokens_to_ids("the"))
        right, wrong = conditionals.log_tokens(found.ids, hidden).sum(dim=1)
        assert right > -1 and right > wrong + 2

    def test_the_wheel_takes_it_along(self) -> None:
        root = Path(__file__).parents[3]
        content = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
        taken = content["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
        assert taken["book/results"] == "mpt_lml/book/results"
        assert (root / "book/results/small_bert/model.safetensors").exists()


def test_a_network_in_training_is_scored_without_dropout_and_left_as_it_was() -> None:
    network = tiny()
    for each in network.modules():
        if isinstance(each, torch.nn.Dropout):
            each.p = 0.5
    one, mask = model(network), torch.tensor([[True, False, True]])
    wanted = one.log_conditional(X, mask)
    network.train()
    assert torch.equal(one.log_conditional(X, mask), wanted) and network.training


def test_each_part_of_a_network_goes_on_in_its_mode() -> None:
    network = tiny().eval()
    network.cls.train()
    modes = [module.training for module in network.modules()]
    model(network).log_conditional(X, masks.all_masks(3, 1))
    assert [module.training for module in network.modules()] == modes


ESMS = [name for name in FAMILIES if name.startswith("ESM")]


@pytest.fixture(params=FAMILIES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: each.save(tmp_path_factory.mktemp(name)) for name, each in FAMILIES.items()}


def loaded(folder: Path, **options: Any) -> tuple[MaskedLM, Any]:
    network, tokenizer = networks.load_network(folder), networks.load_tokenizer(folder)
    return MaskedLM.of(network, tokenizer, **options), tokenizer


def published(folder: Path) -> Any:
    """The network as its authors would run it, with its factor."""
    return EsmForMaskedLM.from_pretrained(folder).eval()


def text(length: int, seed: int = 0) -> str:
    """A sentence that is a row of ``length`` tokens, two of them special."""
    draws = torch.randint(len(LETTERS), (length - 2,), generator=generator(seed))
    return " ".join(LETTERS[each] for each in draws.tolist())


def literal(network: Any, tokenizer: Any, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """One pass for each mask and the softmax of everything, as one would write it down."""
    found = torch.zeros(ids.shape, dtype=torch.float64)
    for row, (x, hidden) in enumerate(zip(ids, mask, strict=True)):
        shown = [tokenizer.mask_token_id if h else int(v) for v, h in zip(x, hidden, strict=True)]
        with torch.no_grad():
            scores = network(input_ids=torch.tensor([shown])).logits[0].double().log_softmax(dim=1)
        found[row] = scores[range(len(x)), x] * hidden
    return found


def test_a_network_may_compute_its_layers_chunk_by_chunk() -> None:
    """Places are then not gathered before the feed-forward part, which cuts along them."""
    ids, mask = torch.tensor([[CLS, 5, 6, 7, 8, SEP]]), torch.tensor([[0, 1, 0, 1, 1, 0]]).bool()
    wanted = MaskedLM(tiny(), MASK).log_tokens(ids, mask)
    network = tiny()
    network.config.chunk_size_feed_forward = 2
    for layer in network.bert.encoder.layer:
        layer.chunk_size_feed_forward = 2
    torch.testing.assert_close(MaskedLM(network, MASK).log_tokens(ids, mask), wanted)


def test_8192_tokens_go_through_a_cpu_at_a_time() -> None:
    assert MaskedLM(tiny(), MASK).max_tokens == 8192
    assert mpt_score.load(tiny(), tiny_tokenizer(), max_tokens=100).model.max_tokens == 100


def test_the_frame_is_the_tokenizers(name: str, folders) -> None:
    model, tokenizer = loaded(folders[name], num_features=5)
    rows = tokens.encode(tokenizer, [text(7)])
    mask = torch.tensor([[False, True, False, True, True]])
    whole = torch.nn.functional.pad(mask, (1, 1))
    found = model.log_each(rows.ids[:, 1:-1], mask)
    torch.testing.assert_close(found, model.log_tokens(rows.ids, whole)[:, 1:-1])


def test_pairs_of_sentences(name: str, folders) -> None:
    """A network that takes no types, or knows one only, gets none."""
    model, tokenizer = loaded(folders[name])
    rows = tokens.encode(tokenizer, ["a b"], ["c d"])
    takes = "token_type_ids" in inspect.signature(model.network.forward).parameters
    kinds = getattr(model.network.config, "type_vocab_size", 0) if takes else 0
    seen = []
    model.network.register_forward_pre_hook(
        lambda _, __, inputs: seen.append("token_type_ids" in inputs), with_kwargs=True
    )
    found = model.log_tokens(rows.ids, rows.maskable, types=rows.types)
    assert any(seen) == (kinds > 1)
    without = model.log_tokens(rows.ids, rows.maskable)
    assert torch.equal(found, without) == (kinds < 2 or not rows.types.any())


@pytest.mark.parametrize("name", ESMS)
class TestTheScaleOfEsm:
    def scales(self, network: Any, ids: torch.Tensor) -> torch.Tensor:
        """Each place's embedding over that of the word alone; 0 where it is hidden."""
        inner = network.esm.embeddings
        inner.position_embedding_type, inner.layer_norm = "none", None
        with torch.no_grad():
            return (inner(ids) / inner.word_embeddings.weight[ids]).mean(dim=-1)

    def shown(self, count: int) -> torch.Tensor:
        """Ten tokens, so many of them the mask token."""
        return torch.arange(5, 15).where(torch.arange(10) >= count, 4)[None]

    def test_it_grows_with_the_mask_and_is_said(self, name: str, folders) -> None:
        network = published(folders[name])
        with pytest.warns(UserWarning, match="0.88 / .1 - hidden share.*constant_scale"):
            MaskedLM.of(network, networks.load_tokenizer(folders[name]))
        for count in (1, 5, 9):
            found = self.scales(network, self.shown(count))[0]
            assert found[:count].abs().max() == 0
            wanted = torch.full((10 - count,), 0.88 / (1 - count / 10))
            torch.testing.assert_close(found[count:], wanted, rtol=1e-5, atol=1e-5)

    def test_it_is_taken_out_of_what_is_loaded(self, name: str, folders, caplog) -> None:
        network = networks.load_network(folders[name])
        assert "token_dropout is taken out" in caplog.text
        MaskedLM.of(network, networks.load_tokenizer(folders[name]))  # without a warning
        for count in (1, 5, 9):
            found = self.scales(network, self.shown(count))[0]
            torch.testing.assert_close(found, (torch.arange(10) >= count).float())

    def test_scores_differ_by_that_and_by_nothing_else(self, name: str, folders) -> None:
        tokenizer = networks.load_tokenizer(folders[name])
        network = published(folders[name])
        ids = torch.tensor([[0, 5, 6, 7, 8, 9, 10, 2]])
        mask = torch.tensor([[0, 1, 1, 1, 1, 1, 0, 0]]).bool()
        scores = mpt_score.load(folders[name]).log_tokens(ids, mask)
        assert (literal(network, tokenizer, ids, mask) - scores).abs().max() > 0.01
        # The published network whose visible embeddings are divided by its factor.
        factor = 0.88 / (1 - 5 / 8)
        network.esm.embeddings.word_embeddings.register_forward_hook(
            lambda _, __, found: found / factor
        )
        undone = literal(network, tokenizer, ids, mask)
        torch.testing.assert_close(undone, scores, rtol=1e-5, atol=1e-5)


def test_precision_of_the_products(folders) -> None:
    error = {}
    for precision in ("float32", "float16", "bfloat16"):
        model, tokenizer = loaded(folders["RoBERTa"], precision=precision)
        rows = tokens.encode(tokenizer, [text(10, seed) for seed in range(8)])
        network = networks.load_network(folders["RoBERTa"])
        exact = literal(network, tokenizer, rows.ids, rows.maskable)
        error[precision] = float((model.log_tokens(rows.ids, rows.maskable) - exact).abs().mean())
    # 24, 11 and 8 bits: errors grow by about 2^13 and 2^3.
    assert error["float32"] < 1e-5 < error["float16"] < error["bfloat16"] / 3 < 0.2


@pytest.mark.parametrize("layers", [1, 3])
def test_only_the_last_of_any_number_of_layers_is_spared(layers: int) -> None:
    for architecture in ("modern", "classic"):
        network = networks.small_masked_lm(12, architecture, width=32, num_layers=layers, seed=1)
        ids = torch.randint(5, 12, (3, 8), generator=generator())
        where = torch.rand(3, 8, generator=generator(1)) < 0.4
        with torch.no_grad():
            found = masked_lm.masked_logits(network.eval(), ids, where)
            torch.testing.assert_close(found, network(ids).logits[where], atol=1e-5, rtol=1e-5)


def test_a_masked_lm_has_one_coordinate_unless_more_are_named() -> None:
    tokenizer = BertTokenizer(vocab={p: n for n, p in enumerate(["[UNK]", "[CLS]", "[SEP]", "a"])})
    tokenizer.add_special_tokens({"mask_token": "[MASK]", "pad_token": "[PAD]"})
    network = networks.small_masked_lm(len(tokenizer), width=32, num_layers=1, seed=0)
    assert masked_lm.MaskedLM.of(network, tokenizer).num_features == 1


def test_batches_that_were_kept_are_not_computed_again(tmp_path: Path) -> None:
    model = MaskedLM(tiny().float(), MASK, max_tokens=8)
    ids = torch.tensor([[2, 5, 6, 7], [2, 6, 7, 8], [2, 7, 8, 9]])
    mask = torch.tensor([[False, True, False, True]]).repeat(3, 1)
    wanted = model.log_tokens(ids, mask)
    batches: list[int] = []  # rows of each batch that was computed
    model.count_passes = batches.append
    model.store = BatchStore(tmp_path / "passes")
    assert torch.equal(model.log_tokens(ids, mask), wanted)
    assert batches == [2, 1]
    model.store.save()
    model.store = BatchStore(tmp_path / "passes")
    model.network.requires_grad_(False)
    for parameter in model.network.parameters():
        parameter.zero_()  # whoever asked it would get other numbers
    assert torch.equal(model.log_tokens(ids, mask), wanted)
    assert batches == [2, 1]
    assert not torch.equal(model.log_tokens(ids, mask.roll(1, dims=1)), wanted)
    assert batches == [2, 1, 2, 1]


@pytest.mark.parametrize("name", ["ids", "row", "mask", "wanted", "types", "same"])
def test_a_batch_that_differs_in_one_thing_is_computed(tmp_path: Path, name: str) -> None:
    asked = {
        "ids": torch.tensor([[2, 5, 6, 7], [2, 6, 7, 8]]),
        "row": torch.tensor([0, 0, 0]),
        "mask": torch.tensor([[False, True, False, True]]).repeat(3, 1),
        "wanted": torch.tensor([[False, True, False, True]]).repeat(3, 1),
        "types": torch.tensor([[0, 0, 0, 0], [0, 0, 1, 1]]),
        "same": torch.tensor([0, 0, 1]),
    }
    another = {
        "ids": torch.tensor([[2, 5, 6, 9], [2, 6, 7, 8]]),
        "row": torch.tensor([1, 1, 1]),
        "mask": torch.tensor([[False, True, True, True]]).repeat(3, 1),
        "wanted": torch.tensor([[False, True, False, False]]).repeat(3, 1),
        "types": torch.tensor([[0, 0, 0, 1], [0, 0, 1, 1]]),
        "same": torch.tensor([0, 1, 1]),
    }
    sizes = {"hidden_size": 8, "num_attention_heads": 1, "intermediate_size": 8}
    config = BertConfig(vocab_size=12, num_hidden_layers=1, **sizes)
    model = MaskedLM(networks.at_random(BertForMaskedLM, config, seed=0), MASK)
    batches: list[int] = []
    model.count_passes = batches.append
    model.store = BatchStore(tmp_path / "passes")
    model.ask(**asked)()
    model.store.save()
    model.store = BatchStore(tmp_path / "passes")
    model.ask(**asked)()
    assert batches == [2]
    model.ask(**(asked | {name: another[name]}))()
    assert len(batches) == 2


def test_equal_masked_rows_need_not_stand_side_by_side() -> None:
    """Of three masked rows the first and the last show the same, and hide other tokens."""
    ids = torch.tensor([[2, 5, 6, 7], [2, 9, 6, 7]])
    row = torch.tensor([0, 0, 1])
    mask = torch.tensor([[0, 1, 0, 0], [0, 0, 1, 1], [0, 1, 0, 0]]).bool()
    model = MaskedLM(tiny(), MASK, max_tokens=4)  # one row at a time
    found = model.ask(ids, row, mask, same=torch.tensor([0, 1, 0]))()
    torch.testing.assert_close(found, model.ask(ids, row, mask)())
