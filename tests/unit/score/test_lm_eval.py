"""A model of lm-evaluation-harness, by a stand-in for its interface and by itself where it is there."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import stand_in_lm_eval
import torch
from tiny_bert import CLS, tiny, tokenizer

import mpt_score

INSTALLED = importlib.util.find_spec("lm_eval") is not None
needs_lm_eval = pytest.mark.skipif(not INSTALLED, reason="needs lm-eval: make peers")

STAND_IN = stand_in_lm_eval.modules()
BESIDE_A_STAND_IN: list[ModuleType] = []


@pytest.fixture(params=["stand-in", pytest.param("lm_eval", marks=needs_lm_eval)])
def adapter(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ModuleType]:
    """``mpt_score.lm_eval``, imported beside a stand-in for the harness or beside the harness."""
    if request.param == "stand-in":
        for name in [name for name in sys.modules if name.partition(".")[0] == "lm_eval"]:
            monkeypatch.delitem(sys.modules, name)
        for name, module in STAND_IN.items():
            monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.delitem(sys.modules, "mpt_score.lm_eval", raising=False)
        # Imported once: checks of types keep the classes that they met first.
        if not BESIDE_A_STAND_IN:
            BESIDE_A_STAND_IN.append(importlib.import_module("mpt_score.lm_eval"))
            del sys.modules["mpt_score.lm_eval"]  # or monkeypatch would leave it there at the end
        monkeypatch.setitem(sys.modules, "mpt_score.lm_eval", BESIDE_A_STAND_IN[0])
        yield BESIDE_A_STAND_IN[0]
    else:
        yield importlib.import_module("mpt_score.lm_eval")


QUESTIONS = [
    {"context": "the cat", "choices": ["sat", "dog"], "gold": 0},
    {"context": "a dog", "choices": ["the", "a", "sat."], "gold": 2},
]
CHOICE = """
task: tiny_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{context}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{gold}}}}"
metric_list: [{{metric: acc}}]
"""
ROLLING = """
task: tiny_rolling
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{context}}}}"
metric_list: [{{metric: word_perplexity}}]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved network with its tokenizer, and two tasks on a local file."""
    where = tmp_path_factory.mktemp("harness")
    tiny().float().save_pretrained(where / "network")
    tokenizer().save_pretrained(where / "network")
    data = where / "questions.jsonl"
    data.write_text("\n".join(map(json.dumps, QUESTIONS)))
    for name, text in (("choice", CHOICE), ("rolling", ROLLING)):
        (where / f"{name}.yaml").write_text(text.format(data=data))
    return where


def requests(kind: str, *arguments: tuple) -> list:
    """Two requests a document, of the harness or of its stand-in: whichever is imported."""
    from lm_eval.api.instance import Instance

    return [Instance(kind, {}, each, n, ("task", n // 2, 1)) for n, each in enumerate(arguments)]


class TestModel:
    def test_options_have_the_scores_of_answers(self, adapter) -> None:
        model = adapter.MaskedHarness(tiny(), tokenizer())
        asked = [("the cat", " sat"), ("the cat", " dog"), ("a dog", " sat."), ("a dog", " a cat")]
        found = model.loglikelihood(requests("loglikelihood", *asked))
        wanted = mpt_score.answers(
            model.scorer, ["the cat", "a dog"], [[" sat", " dog"], [" sat.", " a cat"]]
        )
        assert [value for value, _ in found] == wanted.log_score.flatten().tolist()
        assert not any(greedy for _, greedy in found)

    def test_whole_texts(self, adapter) -> None:
        model = adapter.MaskedHarness(tiny(), tokenizer())
        texts = [("the cat sat",), ("the cat sat " * 10,)]  # the network has places for 14 pieces
        found = model.loglikelihood_rolling(requests("loglikelihood_rolling", *texts))
        wanted = mpt_score.answers(
            model.scorer, [""], [["the cat sat"]]
        ).log_score  # 7 masks have all
        assert found[0] == pytest.approx(wanted.item(), abs=1e-10)
        assert found[1] < 5 * found[0] < 0

    @pytest.mark.bad_input
    def test_generation_is_refused(self, adapter) -> None:
        with pytest.raises(NotImplementedError, match="generates none"):
            adapter.MaskedHarness(tiny(), tokenizer()).generate_until([])

    def test_what_cannot_be_compared_is_said(
        self, adapter, caplog: pytest.LogCaptureFixture
    ) -> None:
        model = adapter.MaskedHarness(tiny(), tokenizer())
        model.loglikelihood(requests("loglikelihood", ("a", " cat"), ("a", " cat sat")))
        assert "1 of 1 questions have options of different lengths" in caplog.text
        model.loglikelihood(requests("loglikelihood", ("a", " cat")))
        assert "mean nothing" in caplog.text
        caplog.clear()
        instances = requests("loglikelihood", ("a", " cat"), ("a", " dog"), ("the", " cat"))
        model.loglikelihood(instances)  # two options of a question, and a text alone
        assert "mean nothing" in caplog.text

    def test_a_context_that_is_too_long_is_cut_from_the_left(
        self, adapter, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The network has 16 places: [CLS], 12 pieces of the context, "sat" or "dog s", [SEP]."""
        model = adapter.MaskedHarness(tiny(), tokenizer())
        long = "the cat sat " * 5 + "a dog"
        asked = [(long, " sat"), (long, " dogs"), ("a dog", " sat"), ("a dog", " cat")]
        values = model.loglikelihood(requests("loglikelihood", *asked))
        assert "1 of 2 contexts are cut from the left" in caplog.text
        pieces = tokenizer()(long)["input_ids"][1:-1]
        prompt = [CLS, *pieces[-12:]]
        encoded = [tokenizer()(text)["input_ids"][1:] for text in ("sat", "dogs")]
        wanted = mpt_score.answers(model.scorer, [prompt], [encoded])
        assert [value for value, _ in values[:2]] == wanted.log_score[0].tolist()
        assert (wanted.num_tokens == torch.tensor([[1, 2]])).all()

    def test_an_option_that_takes_all_places_of_the_context_is_scored(self, adapter) -> None:
        """16 places: [CLS], 14 pieces, [SEP]."""
        model = adapter.MaskedHarness(tiny(), tokenizer())
        option = " the" * 14
        ((value, _),) = model.loglikelihood(requests("loglikelihood", ("a dog", option)))
        ids = tokenizer()(option)["input_ids"][1:]
        assert value == mpt_score.answers(model.scorer, [[CLS]], [[ids]]).log_score.item()

    def test_a_choice_that_cannot_be_scored_is_not_chosen_before_another(
        self, adapter, caplog: pytest.LogCaptureFixture
    ) -> None:
        model = adapter.MaskedHarness(tiny(), tokenizer(), allow_unscorable=True)
        too_long = " the" * 15
        choices = (" sat", " ☃", "", " [MASK]", too_long, " dog")
        asked = [("the cat", choice) for choice in choices]
        unknown = [("a dog", " ☃"), ("a dog", " ☂")]
        together = [*asked, *unknown]
        from lm_eval.api.instance import Instance

        instances = [
            Instance("loglikelihood", {}, each, 0, ("task", int(n >= len(asked)), 1))
            for n, each in enumerate(together)
        ]
        values = [value for value, _ in model.loglikelihood(instances)]
        wanted = mpt_score.answers(model.scorer, ["the cat"], [[" sat", " dog"]]).log_score[0]
        assert [values[0], values[5]] == wanted.tolist()
        assert values[1:5] == values[6:] + values[6:] == [-math.inf] * 4
        assert "6 of 8 continuations cannot be scored" in caplog.text
        assert "1 of 2 questions have no option that can be scored" in caplog.text

    @pytest.mark.bad_input
    def test_a_question_without_scorable_options_is_refused_before_any_pass(self, adapter) -> None:
        """The harness counts the first of equal options as chosen, and also of those of −∞."""
        model = adapter.MaskedHarness(tiny(), tokenizer())
        asked = [("the cat", " sat"), ("the cat", " dog"), ("a dog", " ☃"), ("a dog", " ☂")]
        with pytest.raises(ValueError, match="1 of 2 questions .* document 1 of task task, .*' ☃'"):
            model.loglikelihood(requests("loglikelihood", *asked))

    @pytest.mark.bad_input
    def test_documents_without_a_number_are_told_apart_by_their_contexts(self, adapter) -> None:
        from lm_eval.api.instance import Instance

        model = adapter.MaskedHarness(tiny(), tokenizer())
        asked = [("the cat", " sat"), ("the cat", " dog"), ("a dog", " ☃"), ("a dog", " ☂")]
        instances = [Instance("loglikelihood", {}, each, n) for n, each in enumerate(asked)]
        with pytest.raises(ValueError, match="1 of 2 questions .*' ☃'"):
            model.loglikelihood(instances)

    @pytest.mark.bad_input
    def test_texts_of_which_none_has_a_known_token_are_refused(self, adapter) -> None:
        model = adapter.MaskedHarness(tiny(), tokenizer())
        with pytest.raises(ValueError, match="none of the texts has a token"):
            model.loglikelihood_rolling(requests("loglikelihood_rolling", ("☃",), ("☂☂",)))

    def test_options_in_contexts_of_their_own_are_one_question(
        self, adapter, caplog: pytest.LogCaptureFixture
    ) -> None:
        model = adapter.MaskedHarness(tiny(), tokenizer())
        asked = [("the", " ☃"), ("a", " cat"), ("the", " cat"), ("a", " cat")]
        values = model.loglikelihood(requests("loglikelihood", *asked))
        assert [value == -math.inf for value, _ in values] == [True, False, False, False]
        assert "1 of 2 questions have one option that can be scored" in caplog.text
        assert "mean nothing" not in caplog.text

    def test_a_continuation_alone_needs_not_be_scorable(self, adapter) -> None:
        model = adapter.MaskedHarness(tiny(), tokenizer())
        assert model.loglikelihood(requests("loglikelihood", ("a", " ☃"))) == [(-math.inf, False)]

    def test_bits_a_byte_of_scores_that_are_written_down(
        self, adapter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Of texts of 7, 13, 6 and 5 bytes; the second has an unknown token, the third no other."""
        from lm_eval.api.instance import Instance

        bit = math.log(2)
        scores = SimpleNamespace(
            num_tokens=torch.tensor([2, 3, 2]),
            num_unknown=torch.tensor([0, 1, 0]),
            log_score=torch.tensor([-10.0, -22.5, -10.0]).double() * bit,
            standard_error=torch.tensor([3.0, 3.0, 0.5]).double() * bit,
            num_passes=torch.tensor([3, 7, 3]),
            num_windows=torch.tensor([1, 1, 1]),
        )
        model = adapter.MaskedHarness(tiny(), tokenizer())
        monkeypatch.setattr(mpt_score, "sentences", lambda *_, **options: scores)
        texts = [("a", "the cat"), ("a", "a cat sat ☃"), ("a", "☃☃"), ("b", "a dog")]
        asked = [
            Instance("loglikelihood_rolling", {}, (text,), 0, (task, number, 1))
            for number, (task, text) in enumerate(texts)
        ]
        values = model.loglikelihood_rolling(asked)
        # Four tokens for three: −30 bits. So 50 bits are for 25 bytes, and six more cost 12.
        assert values == pytest.approx([-10 * bit, -30 * bit, -12 * bit, -10 * bit])
        # Residuals of 2 bits a byte are −4, 4 and 0: √(3/2 · 32)/26. Over masks: √(3² + 4²)/26.
        assert model.said["loglikelihood_rolling"]["notices"] == [
            "1 of 4 texts have unknown tokens, each charged what its text's other tokens cost.",
            "1 of 4 texts have no token to score: charged by the byte what the others cost.",
            "task a: 2 bits a byte over 3 texts, ± 0.27 from one text to another, in which is "
            "± 0.19 from the masks that were drawn; 10 passes.",
            "task b: 2 bits a byte over 1 texts, ± 0.1 from the masks that were drawn; 3 passes.",
        ]

    def test_orders_and_masks_are_those_of_its_seed(self, adapter) -> None:
        """Of ten tokens, eight orders of an option and 33 masks of a text are drawn."""
        model = adapter.MaskedHarness(tiny(), tokenizer(), seed=3)
        text = "the cat sat a dog . the dog sat a"
        ((value, _),) = model.loglikelihood(requests("loglikelihood", ("", text)))
        (whole,) = model.loglikelihood_rolling(requests("loglikelihood_rolling", (text,)))
        for seed in (0, 3):
            option = mpt_score.answers(model.scorer, [""], [[text]], seed=seed)
            masked = mpt_score.sentences(model.scorer, [text], num_masks=33, seed=seed)
            assert (value == option.log_score.item()) == (seed == 3)
            assert (whole == masked.log_score.item()) == (seed == 3)

    def test_whole_texts_by_blocks(self, adapter) -> None:
        settings = {"block_length": 2, "later": "absent"}
        model = adapter.MaskedHarness(tiny(), tokenizer(), **settings)
        texts = ["the cat sat on the dog", "a dog sat"]
        values = model.loglikelihood_rolling(
            requests("loglikelihood_rolling", *((text,) for text in texts))
        )
        scores = mpt_score.sentences(model.scorer, texts, num_masks=33, **settings)
        rate = 1 + scores.num_unknown / scores.num_tokens
        assert values == (rate * scores.log_score).tolist()
        assert model.get_model_info()["mpt_score"]["block_length"] == 2
        model.loglikelihood(requests("loglikelihood", ("a", " cat"), ("a", " dog")))
        assert "each answer is scored as one block" in model.said["loglikelihood"]["notices"][0]

    def test_a_task_of_empty_texts_costs_nothing(self, adapter) -> None:
        from lm_eval.api.instance import Instance

        model = adapter.MaskedHarness(tiny(), tokenizer())
        texts = [("empty", ""), ("full", "the cat sat")]
        asked = [
            Instance("loglikelihood_rolling", {}, (text,), 0, (task, number, 1))
            for number, (task, text) in enumerate(texts)
        ]
        values = model.loglikelihood_rolling(asked)
        assert values[0] == 0 and values[1] < 0
        assert "task full: " in model.said["loglikelihood_rolling"]["notices"][-1]

    def test_texts_with_unknown_tokens_are_counted(self, adapter) -> None:
        model = adapter.MaskedHarness(tiny(), tokenizer())
        texts = [("the ☃ sat ☂",), ("a cat",), ("a dog",)]
        model.loglikelihood_rolling(requests("loglikelihood_rolling", *texts))
        notice, *_ = model.said["loglikelihood_rolling"]["notices"]
        assert notice.startswith("1 of 3 texts have unknown tokens")

    def test_texts_in_windows_are_counted(self, adapter) -> None:
        model = adapter.MaskedHarness(tiny(), tokenizer())
        texts = [("the cat sat",), ("the cat sat " * 10,)]
        model.loglikelihood_rolling(requests("loglikelihood_rolling", *texts))
        assert (
            "1 of 2 texts have more than 16 tokens"
            in (model.said["loglikelihood_rolling"]["notices"][0])
        )

    def test_what_was_said_is_kept_with_the_settings(self, adapter) -> None:
        model = adapter.MaskedHarness(tiny(), tokenizer(), num_orders=4, seed=3)
        model.loglikelihood(requests("loglikelihood", ("a", " cat"), ("a", " cat sat")))
        kept = model.get_model_info()["mpt_score"]
        assert kept == json.loads(json.dumps(kept))
        assert (kept["num_orders"], kept["num_masks"], kept["seed"]) == (4, 33, 3)
        assert kept["loglikelihood"]["num_requests"] == 2
        assert len(kept["loglikelihood"]["notices"]) == 1

    @pytest.mark.bad_input
    def test_unknown_arguments_are_refused_with_those_that_are_known(self, adapter) -> None:
        make = adapter.MaskedHarness.create_from_arg_obj
        with pytest.raises(ValueError, match="no num_orderz: it takes pretrained, .*num_orders"):
            make({"pretrained": tiny(), "num_orderz": 4}, {"batch_size": 1})
        with pytest.raises(ValueError, match="no model: it takes pretrained"):
            make({"model": "folder"}, {})
        with pytest.raises(ValueError, match="trust_remote_code.*write a module:function"):
            make({"pretrained": tiny(), "trust_remote_code": True}, {})
        with pytest.raises(ValueError, match="give pretrained="):
            make({}, {"batch_size": 1})

    @pytest.mark.bad_input
    def test_models_and_devices_that_are_not_there_are_named(
        self, adapter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "outside_of_harness.py").write_text("def build(): return None\n")
        for name, told in (
            ("no_such_module:build", "there is no module no_such_module"),
            ("outside_of_harness:bild", "has no bild .its functions: build"),
        ):
            with pytest.raises(ValueError, match=told):
                adapter.MaskedHarness(name, tokenizer())
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        for device, told in (
            ("gpu", "it names none"),
            ("cuda", "torch sees no GPU. Give 'cpu'"),  # the harness itself asks for cuda:0
            ("cuda:1", "torch sees no GPU. Give 'cpu'"),
        ):
            with pytest.raises(ValueError, match=f"device {device!r} cannot be used here: {told}"):
                adapter.MaskedHarness(tiny(), tokenizer(), device=device)

    @pytest.mark.bad_input
    def test_chats_and_functions_without_tokenizer_are_refused(self, adapter) -> None:
        model = adapter.MaskedHarness(tiny(), tokenizer())
        for chat in (
            lambda: model.chat_template(True),
            lambda: model.tokenizer_name,  # all that simple_evaluate asks for
        ):
            with pytest.raises(NotImplementedError, match="without --apply_chat_template"):
                chat()
        assert model.chat_template(False) == ""
        with pytest.raises(ValueError, match="give a tokenizer="):
            adapter.MaskedHarness(lambda ids, mask: ids)

    def test_it_is_registered_under_its_name(self, adapter) -> None:
        from lm_eval.api.registry import get_model

        assert get_model("mpt-lml") is adapter.MaskedHarness

    def test_it_takes_what_the_harness_passes_to_every_model(self, adapter) -> None:
        settings = {"pretrained": tiny(), "tokenizer": tokenizer(), "num_orders": 2}
        passed = {"batch_size": "auto:4", "max_batch_size": 8, "device": None}
        model = adapter.MaskedHarness.create_from_arg_obj(settings, passed)
        assert model.num_orders == 2

    @pytest.mark.skipif(torch.cuda.is_available(), reason="has the GPU that the harness asks for")
    def test_the_gpu_that_the_harness_asks_for_need_not_be_there(
        self, adapter, folder: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        settings = {"pretrained": str(folder / "network")}
        passed = stand_in_lm_eval.PASSED
        model = adapter.MaskedHarness.create_from_arg_obj(settings, passed)
        assert "device cuda:0" in caplog.text and "Device auto is taken" in caplog.text
        ((value, _),) = model.loglikelihood(requests("loglikelihood", ("the cat", " sat")))
        assert value < 0


@needs_lm_eval
def test_the_stand_in_has_the_interface_of_the_harness() -> None:
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import LM

    of_instance = STAND_IN["lm_eval.api.instance"].Instance
    assert (
        list(inspect.signature(of_instance).parameters)[:5]
        == (list(inspect.signature(Instance).parameters)[:5])
    )
    of_model = STAND_IN["lm_eval.api.model"].LM
    assert of_model.__abstractmethods__ == LM.__abstractmethods__
    real = Instance("loglikelihood", {}, ("a", "b"), 0, ("task", 3, 1))
    ours = of_instance("loglikelihood", {}, ("a", "b"), 0, ("task", 3, 1))
    for name in ("args", "task_name", "doc_id"):
        assert getattr(ours, name) == getattr(real, name)
    from lm_eval.config.evaluate_config import EvaluatorConfig

    unasked = EvaluatorConfig()
    assert {name: getattr(unasked, name) for name in stand_in_lm_eval.PASSED} == (
        stand_in_lm_eval.PASSED
    )


@needs_lm_eval
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # its softmax
def test_the_harness_takes_the_first_of_options_that_cannot_be_scored(
    folder: Path, tmp_path: Path
) -> None:
    """So a question without another option would be a hit where the first is right, as in BLiMP."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    importlib.import_module("mpt_score.lm_eval")
    for right in (0, 1):
        data = tmp_path / f"unknown{right}.jsonl"
        data.write_text(json.dumps({"context": "a dog", "choices": ["☃", "☂"], "gold": right}))
        (tmp_path / f"unknown{right}.yaml").write_text(
            CHOICE.format(data=data).replace("tiny_choice", f"unknown{right}")
        )
    settings = {
        "tasks": ["unknown0", "unknown1"],
        "task_manager": TaskManager(include_path=str(tmp_path), include_defaults=False),
        "bootstrap_iters": 0,
        "device": "cpu",
    }
    network = {"pretrained": str(folder / "network")}
    with pytest.raises(ValueError, match="2 of 2 questions have no option"):
        lm_eval.simple_evaluate("mpt-lml", model_args=network, **settings)
    allowed = network | {"allow_unscorable": True}
    results = lm_eval.simple_evaluate("mpt-lml", model_args=allowed, **settings)["results"]
    assert [results[f"unknown{right}"]["acc,none"] for right in (0, 1)] == [1.0, 0.0]


@needs_lm_eval
def test_a_local_task_by_the_command_line(folder: Path, tmp_path: Path) -> None:
    command = [
        *(sys.executable, "-m", "mpt_score.lm_eval", "run", "--model", "mpt-lml"),
        *("--model_args", f"pretrained={folder / 'network'}", "--include_path", str(folder)),
        *("--tasks", "tiny_choice,tiny_rolling", "--output_path", str(tmp_path)),
    ]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        command, env=os.environ | offline, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (path,) = tmp_path.rglob("results*.json")
    written = json.loads(path.read_text())
    results = written["results"]
    kept = written["config"]["mpt_score"]
    assert (kept["num_orders"], kept["num_masks"]) == (8, 33)
    (error,) = kept["loglikelihood_rolling"]["notices"]
    assert error in done.stderr + done.stdout
    from mpt_score.lm_eval import MaskedHarness

    model = MaskedHarness(str(folder / "network"), device="cpu")
    options = [[f" {choice}" for choice in each["choices"]] for each in QUESTIONS]
    best = mpt_score.answers(model.scorer, [each["context"] for each in QUESTIONS], options).best
    right = [int(b) == each["gold"] for b, each in zip(best, QUESTIONS, strict=True)]
    assert results["tiny_choice"]["acc,none"] == sum(right) / 2
    texts = [each["context"] for each in QUESTIONS]
    total = mpt_score.answers(model.scorer, [""] * 2, [[text] for text in texts]).log_score.sum()
    words = sum(len(text.split()) for text in texts)
    found = results["tiny_rolling"]["word_perplexity,none"]
    assert found == pytest.approx((-total / words).exp().item(), rel=1e-6)
