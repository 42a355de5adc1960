"""Answers to a prompt: only they hide, alike for all options, and their order does not matter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
import torch
from models import generator, points, random_table
from tiny_bert import CLS, MASK, PIECES, tiny, tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import BertTokenizer

import mpt_score
from mpt_lml import HMM, ConditionalTable, masks, orders
from mpt_lml.models.base import FromFunction
from mpt_score.errors import TextError
from mpt_score.networks.residues import ResidueTokenizer
from mpt_score.quantities.answer_scores import missing_space_hint
from mpt_score.rows.requests import masks_along_orders, stream

PROMPTS = ("the cat", "a dog sat", "")
OPTIONS = (
    (" sat a dog", " sat the cat", "s sat."),
    (" a cat", " the cat", "."),
    ("cats", "the dog"),
)


def language_task(num_prompt: int = 12) -> tuple[HMM, torch.Tensor, list, list]:
    """Prompts of the book's language, four options each, and the sequences these make."""
    language = HMM.cyclic()
    x = language.sample(5, generator=generator(1))
    ends = language.sample(20, generator=generator(2))[:, num_prompt:]
    prompts = x[:, :num_prompt].tolist()
    options = [ends[4 * n : 4 * n + 4].tolist() for n in range(5)]
    whole = [[head + tail for tail in tails] for head, tails in zip(prompts, options, strict=True)]
    return language, torch.tensor(whole), prompts, options


class TestExactConditionals:
    @pytest.mark.parametrize("num_orders", [8, 2], ids=["all orders", "drawn orders"])
    def test_log_scores_are_log_conditionals(self, num_orders: int) -> None:
        language, whole, prompts, options = language_task()
        found = mpt_score.answers(language.log_values, prompts, options, num_orders=num_orders)
        observed = torch.arange(16)[None] < 12
        joint = language.log_marginal(whole.flatten(0, 1)).view(5, 4)
        head = language.log_subset_marginal(whole[:, 0], observed)[0]
        truth = joint - head[:, None]
        assert (found.log_score - truth).abs().max() < 1e-10
        assert found.best.tolist() == truth.argmax(dim=1).tolist()
        best = truth.amax(dim=1, keepdim=True)
        assert (found.difference - (truth - best)).abs().max() < 1e-10
        # Two of 24 orders may be the same, and have no error then.
        assert found.standard_error.nan_to_num().max() < 1e-10
        assert found.difference_error.nan_to_num().max() < 1e-10
        assert found.comparable.all() and not found.merged.any()
        # All masks, or along two orders of four, which have at least the mask of all in common; and
        # what the options of a prompt show alike is one pass.
        shown = [
            {tuple(-1 if hidden else token for hidden, token in zip(mask, option, strict=True))}
            for of_prompt in options
            for option in of_prompt
            for mask in masks.subsets(4)[1:].tolist()
        ]
        different = [len(set().union(*shown[60 * n : 60 * (n + 1)])) for n in range(5)]
        num_passes = found.num_passes.tolist()
        assert num_passes == different or (num_orders == 2 and max(num_passes) <= 4 * 6 + 1)

    def test_fewer_options_are_compared_as_well(self) -> None:
        language, _, prompts, options = language_task()
        found = mpt_score.answers(language.log_values, prompts[:2], [options[0][:2], options[1]])
        assert found.num_tokens.tolist() == [[4, 4, 0, 0], [4, 4, 4, 4]]
        assert found.comparable.tolist() == [True, True]

    def test_an_empty_prompt_leaves_the_whole_text(self) -> None:
        language = HMM.cyclic(num_features=5)
        x = language.sample(3, generator=generator(0))
        found = mpt_score.answers(language.log_values, [[]], [x.tolist()])
        assert (found.log_score[0] - language.log_marginal(x)).abs().max() < 1e-10


class TestInconsistentConditionals:
    def model(self) -> ConditionalTable:
        joint = random_table(*[2] * 5, seed=3)
        return ConditionalTable.of(joint, noise=0.7, generator=generator(4))

    def test_the_log_score_is_the_mean_over_all_orders(self) -> None:
        model, x = self.model(), points(5, 2)[:16]  # all begin with 0
        found = mpt_score.answers(model.log_values, [[0]], [x[:, 1:].tolist()])

        def given_zero(rest: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            whole = torch.nn.functional.pad(rest, (1, 0))
            return model.log_values(whole, torch.nn.functional.pad(mask, (1, 0)))[:, 1:]

        exact = orders.exact(FromFunction(given_zero, 4), x[:, 1:])
        torch.testing.assert_close(found.log_score[0], exact.mean, rtol=0, atol=1e-12)
        assert found.standard_error.max() < 1e-12

    def test_drawn_orders_have_the_mean_of_all_and_say_their_error(self) -> None:
        """After 400 prompts whose first tokens say nothing: each has orders of its own."""
        model, options = self.model(), [[1, 0, 1, 1], [0, 1, 1, 0]]

        def of_last_five(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            values = torch.full((*ids.shape, 2), 0.5, dtype=torch.float64).log()
            values[:, -5:] = model.log_values(ids[:, -5:], mask[:, -5:])
            return values

        scorer = mpt_score.load(of_last_five)
        prompts = [[*head, 1] for head in points(9, 2)[:400].tolist()]
        exact = mpt_score.answers(scorer, prompts[:1], [options])
        found = mpt_score.answers(scorer, prompts, [options] * 400, num_orders=3)
        values = {
            name: getattr(found, name)
            for name in ("log_score", "difference", "standard_error", "difference_error")
        }
        for name in ("log_score", "difference"):
            mean, spread = values[name].mean(dim=0), values[name].std(dim=0)
            # `difference` is to the best of each draw: the two options are far apart here.
            assert ((mean - getattr(exact, name)[0]).abs() <= 5 * spread / 20).all()
        # The variance of three draws has a relative spread of 1; of 400 means, a twentieth. Three of
        # 24 orders are the same one time in 576, and have no error then.
        stated = values["standard_error"].square().nanmean(dim=0).sqrt()
        assert ((stated / values["log_score"].std(dim=0) - 1).abs() < 0.15).all()
        worst = exact.difference[0].argmin()
        stated = values["difference_error"][:, worst].square().nanmean().sqrt()
        assert abs(stated / values["difference"][:, worst].std() - 1) < 0.15

    def test_orders_that_happen_to_be_the_same_say_nothing_of_their_spread(self) -> None:
        """Of three tokens two orders are the same one time in six; one token has a single order."""
        scorer = mpt_score.load(self.model().log_values)
        prompts = [[0, 1], [0, 1, 1, 0]]
        options = [[[1, 0, 1], [0, 1, 1]], [[1], [0]]]
        num_same = 0
        for seed in range(60):
            key = f"{seed} after [0, 1], 3 tokens"
            first, second = masks_along_orders(2, 3, [stream(key)]).wanted[0].split(3)
            found = mpt_score.answers(scorer, prompts, options, num_orders=2, seed=seed)
            is_same = torch.equal(first, second)
            num_same += is_same
            assert found.standard_error.isnan().tolist() == [[is_same] * 2, [False] * 2]
            is_other = torch.arange(2) != found.best[0]
            assert torch.equal(found.difference_error[0].isnan(), is_other & is_same)
            assert not found.difference_error[1].isnan().any()
            assert found.log_score.isfinite().all()
        assert 0 < num_same < 60

    def test_a_difference_to_a_best_option_without_an_error_has_none(self) -> None:
        def conditionals(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            shown = ids.masked_fill(mask, 2).double()
            logits = (shown + shown.cumsum(dim=1)).sin()
            return torch.stack([-logits, logits], dim=2).log_softmax(dim=2)

        def are_same(seed: int, count: int) -> bool:
            key = f"{seed} after [0, 1], {count} tokens"
            first, second = masks_along_orders(2, count, [stream(key)]).wanted[0].split(count)
            return torch.equal(first, second)

        scorer = mpt_score.load(conditionals)
        options = [[0, 1, 1], [1, 0, 0, 1]]
        num_same = 0
        for seed in range(30):
            found = mpt_score.answers(scorer, [[0, 1]], [options], num_orders=2, seed=seed)
            assert found.best.tolist() == [0]
            is_same = are_same(seed, 3) or are_same(seed, 4)
            assert found.difference_error.isnan().tolist() == [[False, is_same]]
            num_same += are_same(seed, 3)
        assert 0 < num_same < 30

    def test_neither_its_place_nor_other_prompts_change_what_a_prompt_gets(self) -> None:
        model = self.model().log_values
        prompts = [[0], [1], [0, 1]]
        options = [[[1, 0, 1, 1], [0, 1, 1, 0]], [[1, 0, 1, 1]], [[1, 1, 0]]]
        found = mpt_score.answers(model, prompts, options, num_orders=2)
        turned = mpt_score.answers(model, prompts[::-1], options[::-1], num_orders=2)
        for name in ("log_score", "difference"):
            torch.testing.assert_close(
                getattr(turned, name).flip(0),
                getattr(found, name),
                rtol=0,
                atol=1e-12,
                equal_nan=True,
            )
        twice = mpt_score.answers(model, [[0], [0]], options[:1] * 2, num_orders=2)
        assert torch.equal(twice.log_score[0], twice.log_score[1])
        other = mpt_score.answers(model, prompts, options, num_orders=2, seed=1)
        assert (other.log_score[0] - found.log_score[0]).abs().max() > 0.01


class TestMasks:
    def test_all_options_of_a_prompt_have_the_same(self) -> None:
        language, _, prompts, options = language_task(num_prompt=8)
        seen: list[tuple] = []

        def conditionals(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            seen.extend(map(tuple, ids.masked_fill(mask, -1).tolist()))
            return language.log_values(ids, mask)

        def masks_of(text: Sequence[int]) -> list[list[bool]]:
            """Those under which what it shows was asked about."""
            return [
                [token == -1 for token in row]
                for row in seen
                if all(a in (-1, b) for a, b in zip(row, text, strict=True))
            ]

        model = mpt_score.load(conditionals)
        mpt_score.answers(model, prompts[:1], [options[0][:1]])  # the door's test of a function
        seen.clear()
        mpt_score.answers(model, prompts, options, num_orders=5)
        for head, tails in zip(prompts, options, strict=True):
            first, *others = (masks_of([*head, *tail]) for tail in tails)
            assert all(sorted(other) == sorted(first) for other in others)
            assert not any(any(hidden[:8]) for hidden in first)
            # Along five orders of eight: all of each size, those that came up twice asked once.
            sizes = Counter(map(sum, first))
            assert set(sizes) == set(range(1, 9)) and sizes[8] == 1 and max(sizes.values()) <= 5
            assert len(set(map(tuple, first))) == len(first)
        some, other = (masks_of([*prompts[n], *options[n][0]]) for n in (0, 1))
        assert sorted(some) != sorted(other)

    @pytest.mark.parametrize("num_orders", [8, 2])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_exchanging_options_changes_nothing(self, num_orders: int, dtype: torch.dtype) -> None:
        network, turned = tiny().to(dtype), [each[::-1] for each in OPTIONS]
        one, other = (
            mpt_score.answers(
                network, PROMPTS, options, tokenizer=tokenizer(), num_orders=num_orders
            )
            for options in (OPTIONS, turned)
        )
        for n, options in enumerate(OPTIONS):
            some, rest = slice(len(options)), slice(len(options), None)
            for name in ("log_score", "standard_error", "difference", "difference_error"):
                ours, theirs = getattr(one, name)[n], getattr(other, name)[n]
                assert torch.equal(ours[some], theirs[some].flip(0))
                assert ours[rest].isnan().all() and theirs[rest].isnan().all()
            assert options[one.best[n]] == turned[n][other.best[n]]
        assert torch.equal(one.num_passes, other.num_passes)


@torch.no_grad()
def log_q(ids: list[int], place: int, hidden: set[int]) -> float:
    """log q of the token at a place of a row, by the tiny network alone."""
    shown = [MASK if j in hidden else token for j, token in enumerate(ids)]
    return tiny()(torch.tensor([shown])).logits[0, place].log_softmax(dim=-1)[ids[place]].item()


class TestPseudoLogLikelihoods:
    PROMPTS = ("the cat", "a dog sat", "")
    OPTIONS = (
        (" sats. a dogs", " sat", "s sat. the"),  # of one, two and three words of two pieces
        (" a cats", "."),
        ("cats", "a dog sats a cat"),
    )

    def literal(self, prompt: str, option: str, *, within_word: bool) -> float:
        ids = tokenizer()(prompt + option)["input_ids"]
        pieces = tokenizer().convert_ids_to_tokens(ids)
        start = len(tokenizer()(prompt)["input_ids"]) - 1
        end = len(ids) - 1
        total = 0.0
        for place in range(start, end):
            hidden = {place}
            later = place + 1
            while within_word and later < end and pieces[later].startswith("##"):
                hidden.add(later)
                later += 1
            total += log_q(ids, place, hidden)
        return total

    @pytest.mark.parametrize("num_orders", [8, 2])
    def test_they_are_literal_sums(self, num_orders: int) -> None:
        found = mpt_score.answers(
            tiny(),
            self.PROMPTS,
            self.OPTIONS,
            tokenizer=tokenizer(),
            num_orders=num_orders,
            pseudo=True,
            within_word=True,
        )
        for n, (prompt, options) in enumerate(zip(self.PROMPTS, self.OPTIONS, strict=True)):
            for option, text in enumerate(options):
                alone = self.literal(prompt, text, within_word=False)
                assert found.pseudo_log_likelihood[n, option].item() == pytest.approx(
                    alone, abs=1e-9
                )
                words = self.literal(prompt, text, within_word=True)
                assert found.within_word[n, option].item() == pytest.approx(words, abs=1e-9)
        apart = found.within_word - found.pseudo_log_likelihood
        assert apart[0, 0].abs() > 0.01 and apart[0, 1] == 0
        without = mpt_score.answers(
            tiny(), self.PROMPTS, self.OPTIONS, tokenizer=tokenizer(), num_orders=num_orders
        )
        torch.testing.assert_close(
            found.log_score, without.log_score, rtol=0, atol=1e-10, equal_nan=True
        )
        assert without.pseudo_log_likelihood.isnan().all() and without.within_word.isnan().all()

    def test_a_word_that_begins_in_the_prompt_is_one_word(self) -> None:
        """ "cat" + "s": only tokens of the option hide, though their word began before."""
        options = [["s", "s."]]
        found = mpt_score.answers(
            tiny(), ["the cat"], options, tokenizer=tokenizer(), within_word=True, pseudo=True
        )
        torch.testing.assert_close(found.within_word, found.pseudo_log_likelihood)

    def test_of_token_ids_each_is_a_word(self) -> None:
        prompt, option = [2, 5, 6], [7, 8, 9, 3]
        found = mpt_score.answers(
            tiny(), [prompt], [[option]], tokenizer=tokenizer(), within_word=True, pseudo=True
        )
        wanted = sum(log_q(prompt + option, place, {place}) for place in (3, 4, 5))
        assert found.num_tokens.tolist() == [[3]]
        assert found.pseudo_log_likelihood.item() == pytest.approx(wanted, abs=1e-9)
        assert found.within_word.item() == pytest.approx(wanted, abs=1e-9)

    def test_a_token_across_the_boundary_counts_for_all_options(self) -> None:
        found = mpt_score.answers(
            tiny(), ["the do"], [["g sat", "gs"]], tokenizer=tokenizer(), pseudo=True
        )
        ids = tokenizer()("the dogs")["input_ids"]
        wanted = log_q(ids, 2, {2}) + log_q(ids, 3, {3})
        assert found.pseudo_log_likelihood[0, 1].item() == pytest.approx(wanted, abs=1e-9)


class TestBoundary:
    def found(self, prompt: str, *options: str) -> mpt_score.AnswerScores:
        return mpt_score.answers(tiny(), [prompt], [options], tokenizer=tokenizer())

    def test_options_of_other_lengths_are_not_comparable(self) -> None:
        found = self.found("the cat", " sat", " sat a dog", " sat.")
        assert found.num_tokens.tolist() == [[1, 3, 2]]
        assert found.comparable.tolist() == [False] and found.merged.tolist() == [False]
        assert self.found("the cat", " sat", "s").comparable.tolist() == [True]

    def test_a_prompt_may_have_unknown_words(self) -> None:
        assert self.found("the zebra", " sat", " dog").log_score.isfinite().all()

    def test_options_are_compared_within_their_prompt(self) -> None:
        options = [[" sat", " dog"], [" cat sat", " dog sat"]]
        found = mpt_score.answers(tiny(), ["the cat", "a"], options, tokenizer=tokenizer())
        assert found.num_tokens.tolist() == [[1, 1], [2, 2]]
        assert found.comparable.tolist() == [True, True]

    def test_a_token_across_the_boundary_belongs_to_the_answer_of_all_options(self) -> None:
        found = self.found("the do", "g sat", "gs")  # "do" alone is unknown, "dog" is not
        assert found.merged.tolist() == [True]
        plain = self.found("the", " dog sat", " dogs")
        assert torch.equal(found.log_score, plain.log_score)

    def test_a_tokenizer_may_put_nothing_behind_a_text(self) -> None:
        words = tokenizer()
        words.backend_tokenizer.post_processor = TemplateProcessing(
            single="[CLS] $A", special_tokens=[("[CLS]", CLS)]
        )
        for prompt, options, is_merged in (
            ("the do", ["g sat", "gs"], True),
            ("the", [" dog sat", " dogs"], False),
        ):
            found = mpt_score.answers(tiny(), [prompt], [options], tokenizer=words)
            assert found.num_tokens.tolist() == [[2, 2]] and found.merged.tolist() == [is_merged]

    def test_one_merged_option_moves_the_beginning_of_the_others(self) -> None:
        found = self.found("the cat", "s sat", " sat", "s")
        assert found.num_tokens.tolist() == [[2, 1, 1]] and not found.merged.any()
        pieces = [*PIECES[:9], "cats", *PIECES[10:]]
        words = BertTokenizer(vocab={piece: n for n, piece in enumerate(pieces)})
        for options in (["s sat", " sat"], [" sat", "s sat"]):
            found = mpt_score.answers(tiny(), ["the cat"], [options], tokenizer=words)
            assert found.num_tokens.tolist() == [[2, 2]] and found.merged.all()


class TestMissingSpace:
    def said(self, prompts: list, options: list, caplog: pytest.LogCaptureFixture) -> list[str]:
        mpt_score.answers(tiny(), prompts, options, tokenizer=tokenizer())
        return caplog.messages

    def test_the_first_one_is_said(self, caplog: pytest.LogCaptureFixture) -> None:
        prompts = ["the cat", "the do", "a cat"]
        options = [[" sat", " dog"], ["g sat", "gs"], ["s"]]
        (hint,) = self.said(prompts, options, caplog)
        assert '"dog"' in hint and '(" g")' in hint

    def test_nothing_is_said_of_others(self, caplog: pytest.LogCaptureFixture) -> None:
        assert self.said(["the cat"], [[" sat", " dog"]], caplog) == []
        assert self.said([[2, 5, 6]], [[[7, 3], [8, 3]]], caplog) == []


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        ("the cat", [[" sat"]], "prompts must be a sequence of at least one text"),
        (["the cat"], [], "give a list of prompts"),
        (["the cat"], [[]], "options must be a sequence of at least one text"),
        (
            ["a", "the cat"],
            [[" cat"], [" sat", ""]],
            "prompt 1: option 1 cannot be scored: it has no token",
        ),
        (["the cat"], [[" sat", " zebra cat"]], "prompt 0: option 1.*unknown"),
        (["the cat"], [[" sat", " cat zebra"]], "prompt 0: option 1.*unknown"),
        (["the cat"], [[" sat" * 20]], "row of 24 tokens is longer than 16"),
        ([[2, 5]], [[[6, 3, 7, 3]]], "prompt 0: option 0 cannot be scored: it has a special token"),
    ],
)
def test_refusals(prompts: list, options: list, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mpt_score.answers(tiny(), prompts, options, tokenizer=tokenizer())


class TestSkip:
    PROMPTS = ("the cat", "a dog", "the", "the", "a")
    OPTIONS = (
        (" sat", " dog"),
        (" zebra", " sat"),
        (" cat", " [MASK]"),
        (" cat", " sat" * 20),
        (" dog",),
    )

    def found(self, prompts: tuple, options: tuple, **more: object) -> mpt_score.AnswerScores:
        return mpt_score.answers(tiny(), prompts, options, tokenizer=tokenizer(), **more)

    def test_a_prompt_that_cannot_be_scored_costs_itself_alone(self) -> None:
        found = self.found(self.PROMPTS, self.OPTIONS, skip=True)
        assert list(found.skipped) == [1, 2, 3]
        assert "option 0 cannot be scored: it has a token that is unknown" in found.skipped[1]
        assert "option 1 after its prompt holds [MASK]" in found.skipped[2]
        assert "row of 23 tokens is longer than 16" in found.skipped[3]
        kept = self.found((self.PROMPTS[0], self.PROMPTS[4]), (self.OPTIONS[0], self.OPTIONS[4]))
        assert not kept.skipped
        for name in ("log_score", "difference"):
            torch.testing.assert_close(
                getattr(found, name)[[0, 4]], getattr(kept, name), equal_nan=True
            )
        assert found.log_score[1:4].isnan().all() and found.num_tokens[1:4].sum() == 0
        assert found.best.tolist()[1:4] == [-1] * 3 and found.num_passes[1:4].sum() == 0
        assert {row["prompt"] for row in found.rows()} == {0, 4}

    def test_an_answer_that_is_not_finite_costs_its_prompt_alone(self) -> None:
        def conditionals(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            values = torch.tensor([0.0, 0.0, -torch.inf], dtype=torch.float64).log_softmax(-1)
            return values.expand(*ids.shape, 3)

        prompts, options = [[0], [1]], [[[0, 1], [0, 2]], [[1, 0]]]
        found = mpt_score.answers(conditionals, prompts, options, skip=True, pseudo=True)
        assert list(found.skipped) == [0] and found.best.tolist() == [-1, 0]
        assert found.log_score[0].isnan().all() and found.pseudo_log_likelihood[0].isnan().all()
        assert found.log_score[1, 0].isfinite() and (found.num_passes > 0).tolist() == [False, True]
        with pytest.raises(ValueError, match="prompt 0: "):
            mpt_score.answers(conditionals, prompts, options)

    def test_where_none_is_left_all_are_listed(self) -> None:
        found = self.found(self.PROMPTS[2:3], self.OPTIONS[2:3], skip=True)
        assert list(found.skipped) == [0] and not found.rows()

    @pytest.mark.bad_input
    def test_without_it_the_first_is_refused(self) -> None:
        with pytest.raises(TextError, match=r"prompt 1: .*unknown.*skip=True") as refused:
            self.found(self.PROMPTS, self.OPTIONS)
        assert refused.value.number == 1


@pytest.mark.parametrize(
    ("prompt", "option", "joined"),
    [
        ("The cake is", "done", '"isdone"'),
        ("The cake is", "done, she said.", '"isdone,"'),
        ("They married in", "1999", '"in1999"'),
        ("Is it done?", "Yes", '"done?Yes"'),
        ("Он пришёл", "домой", '"пришёлдомой"'),
    ],
)
def test_two_words_that_become_one(prompt: str, option: str, joined: str) -> None:
    hint = missing_space_hint(prompt, option)
    assert hint is not None and joined in hint
    assert missing_space_hint(prompt, f" {option}") is None
    assert missing_space_hint(f"{prompt} ", option) is None


@pytest.mark.parametrize(
    ("prompt", "option"),
    [
        ("The steak was well-", "done"),
        ("He said “", "done"),
        ("It belongs to O'", "Brien"),
        ("The cake (", "done)"),
        ("The cake is done", "."),
        ("The cake is", ""),
        ("", "done"),
        ("This is", "学生"),
        ("MKTAYIAK", "QR"),
        ("我 是", "学生"),
        ("这 叫", "done"),
        ("The cake is\n", "done"),
    ],
)
def test_what_joins_as_it_is_meant(prompt: str, option: str) -> None:
    assert missing_space_hint(prompt, option) is None


def test_a_prompt_that_cannot_be_read_is_one_of_those_to_skip() -> None:
    """A tokenizer of residues refuses the prompt alone as well."""
    model = mpt_score.load(
        lambda ids, mask: torch.zeros(*ids.shape, 25).log_softmax(-1), ResidueTokenizer()
    )
    found = mpt_score.answers(model, ["EV-", "EVQ"], [["L", "D"], ["L", "D"]], skip=True)
    assert set(found.skipped) == {0} and found.num_tokens.tolist() == [[0, 0], [1, 1]]
