"""The search: whole words, no TeX, and first the page that is about them."""

from __future__ import annotations

import re

import pytest
from chromium import SITE
from lxml import html
from visits import Visit

pytestmark = pytest.mark.browser

DESKTOP = {"width": 1280, "height": 900}
FIRST = {
    "marginal likelihood": "01-masked-pretraining",
    "telescoping lemma": "02-chain-rule",
    "Shapley value": "02-chain-rule",
    "mask-rate curve": "03-mask-rate-curve",
    "Han's inequality": "03-mask-rate-curve",
    "probabilistic PCA": "05-ppca",
    "Woodbury": "05-ppca",
    "digits": "05-ppca",
    "variance of the estimator": "06-convergence",
    "bias of a fixed rate": "07-training",
    "area under the curve": "03-mask-rate-curve",
    "pseudo-Gibbs": "10-deep-vae",
    "importance sampling": "10-deep-vae",
    "evidence of a VAE": "10-deep-vae",
    "BERT": "12-bert",
    "pseudo-perplexity": "12-bert",
    "BERT sentence probability": "12-bert",
    "masked autoencoder": "13-images",
    "crossover rate": "08-curve-shape",
    "Godambe information": "note-a-one-rate",
    "mixture of orders": "04-orders",
    "masked diffusion": "14-masked-diffusion",
    "masked diffusion likelihood": "14-masked-diffusion",
    "leave-one-out": "15-whole-tables",
    "TabPFN": "15-whole-tables",
    "Bayes factor": "15-whole-tables",
    "likelihood of a sentence": "scoring-guide",
    "perplexity": "what-a-model-must-know",
    "bits per token": "what-a-model-must-know",
    "loss of 1.5 in my log": "what-a-model-must-know",
    "what mask ratio should I use": "how-should-i-mask",
    "confidence-based decoding": "note-b-orders",
    "WordPiece": "glossary",
    "license": "start-here",
    "install": "how-to-run",
    "PPCA": "05-ppca",
    "how many random masks do I need": "06-convergence",
    "how many masks do I need": "06-convergence",
    "what is a nat": "glossary",
    "mistakes in the paper": "errata",
    "exact_curve": "api-mpt-lml",
    "Besag pseudolikelihood": "12-bert",
    "reconstruction error as log likelihood": "13-images",
    "why does 15% masking work": "12-bert",
    "left to right or any order": "04-orders",
    "inconsistent conditionals": "04-orders",
    "Gaussian conditional distribution": "05-ppca",
    "unbiased estimate of the log likelihood": "06-convergence",
    "does masked training maximize the likelihood": "07-training",
    "difference between ELBO and evidence": "10-deep-vae",
    "can I use BERT as a language model": "12-bert",
    "which noise schedule": "14-masked-diffusion",
    "antibody language model": "note-f-antibodies",
    "score a protein sequence with ESM": "scoring-guide",
    "run it on Colab": "how-to-run",
}
AMONG_THREE = {
    "which masking rate": "how-should-i-mask",
    "perplexity": "12-bert",
    "probability of a sentence from BERT": "scoring-guide",
    "linear probe": "note-g-features",
}
WORDS_OF_THE_FIELD = ["any-order", "pseudo-log-likelihood", "perplexity", "MDLM", "LLaDA"]
WORDS_OF_THE_FIELD += ["control variate", "composite likelihood", "Shapley", "crossover", "cheat"]
MEANING = {
    "what is a nat": "term-nat",
    "What's a mask?": "term-mask",
    "what does PLL mean": "term-pseudo-likelihood",
    "definition of pseudo-perplexity": "term-pseudo-perplexity",
    "what is Godambe": "term-Godambe-information",
}
SAME = [
    ("hidden Markov model", "HMMs"),
    ("why 15% masking", "why 15 percent masking"),
    ("Besag pseudolikelihood", "Besag pseudo-likelihood"),
    ("auto-regressive", "autoregressive"),
]
THEOREMS = "//*[contains(@class, 'theorem') or contains(@class, 'lemma')]"
THEOREMS += "/p[contains(@class, 'admonition-title')]"
RESULTS = "#search-results li > a:first-child"
ADDRESSES = "all => all.map(a => a.getAttribute('href'))"


@pytest.fixture(scope="module")
def search(browser, address: str):
    """Types a query into the page of the search; returns the addresses found, best first."""
    visit = Visit(browser, f"{address}/search.html", viewport=DESKTOP)
    page = visit.settle()
    field = page.locator(".bd-search-container input[type=search]")

    def found(query: str) -> list[str]:
        field.fill(query)
        return page.eval_on_selector_all(RESULTS, ADDRESSES)

    found.page = page
    yield found
    visit.close()
    assert visit.errors + visit.outside == []


@pytest.mark.parametrize("query", FIRST)
def test_the_page_that_is_about_it_comes_first(search, query: str) -> None:
    found = search(query)
    assert found[0].partition("#")[0] == f"book/{FIRST[query]}.html", found[:5]


@pytest.mark.parametrize("query", WORDS_OF_THE_FIELD)
def test_words_of_the_field_are_found(search, query: str) -> None:
    assert search(query) != []


@pytest.mark.parametrize("query", AMONG_THREE)
def test_a_page_that_answers_it_is_one_of_three(search, query: str) -> None:
    found = search(query)[:3]
    assert f"book/{AMONG_THREE[query]}.html" in found


@pytest.mark.parametrize("query", MEANING)
def test_who_asks_what_a_word_means_is_led_to_its_entry(search, query: str) -> None:
    assert search(query)[0] == "book/glossary.html"
    links = search.page.eval_on_selector_all("#search-results li:first-child a", ADDRESSES)
    assert links[-1] == f"book/glossary.html#{MEANING[query]}"


def test_a_word_alone_is_no_question_to_the_glossary(search) -> None:
    for word in ("pseudo-Gibbs", "masked diffusion", "Shapley value"):
        assert search(word)[0] != "book/glossary.html"


@pytest.mark.parametrize(("one", "other"), SAME)
def test_two_ways_to_write_it_find_the_same_first(search, one: str, other: str) -> None:
    found = search(one)[:3]
    assert found and found == search(other)[:3]


def test_a_short_name_finds_and_marks_the_long_one(search) -> None:
    assert "book/12-bert.html" in search("PLL")
    marks = search.page.locator("#search-results mark").all_inner_texts()
    assert {"pseudo", "log", "likelihood"} <= set(marks)
    search("PPCA")
    marks = search.page.locator("#search-results mark").all_inner_texts()
    assert {"PPCA", "Probabilistic", "PCA"} <= {mark[0].upper() + mark[1:] for mark in marks}


def test_pages_with_most_of_the_words_count_half(search) -> None:
    """They stand below a page with all of them, unless it only mentions what they are about."""
    one = search("telescoping Shapley SymPy")
    assert one[0] == "book/02-chain-rule.html" and len(one) > 1
    says = search.page.locator(".search-summary").inner_text()
    assert says.startswith("One page has these words") and "of them" in says.partition("more ")[2]
    assert "book/scoring-guide.html" in search("score a protein sequence with ESM")


def test_words_are_found_and_not_parts_of_them(search) -> None:
    search("rain")
    marks = set(search.page.locator("#search-results mark").all_inner_texts())
    assert marks and {mark.lower() for mark in marks} <= {"rain", "rains", "rained", "raining"}
    search("marginal")
    assert "margin" not in search.page.locator("#search-results mark").all_inner_texts()
    assert search("ikeliho") == []
    assert "No page" in search.page.locator(".search-summary").inner_text()


def test_forms_of_a_word_are_one(search) -> None:
    assert search("masked scores") == search("mask score")


def test_results_show_no_tex_and_lead_to_sections(search) -> None:
    for query in ("telescoping", "variance", "conditional"):
        search(query)
        assert "\\" not in search.page.locator("#search-results").inner_text()
    links = search.page.eval_on_selector_all("#search-results .search-section", ADDRESSES)
    assert links
    for link in links:
        name, _, anchor = link.partition("#")
        assert f'id="{anchor}"' in (SITE / name).read_text(encoding="utf-8"), link
    names = search.page.locator("#search-results .search-section").all_inner_texts()
    assert all(name.strip() for name in names)


def test_a_statement_is_found_by_its_name(search) -> None:
    search("Godambe information of one mask size")
    links = search.page.eval_on_selector_all("#search-results .search-section", ADDRESSES)
    assert links[0] == "book/note-a-one-rate.html#thm-a-godambe"


def test_an_address_asks_for_a_theorem(browser, address: str) -> None:
    """By a word of its name; the address is what other pages lead to."""
    where, word = next(
        (f"book/{chapter.name}", word)
        for chapter in sorted((SITE / "book").glob("[0-9]*.html"))
        for title in html.parse(chapter).xpath(THEOREMS)
        for word in re.findall("[A-Za-z]{5,}", title.text_content().partition("(")[2])
    )
    visit = Visit(browser, f"{address}/search.html?q={word}", viewport=DESKTOP)
    visit.page.wait_for_selector(RESULTS)
    found = visit.page.eval_on_selector_all("#search-results li a", ADDRESSES)
    assert any(link.startswith(where) for link in found), (word, found)
    visit.close()
    assert visit.errors + visit.outside == []


def test_every_page_asks_the_page_of_the_search(browser, address: str) -> None:
    visit = Visit(browser, f"{address}/book/index.html", viewport=DESKTOP)
    page = visit.settle()
    page.keyboard.press("Control+k")
    page.locator("#pst-search-dialog input[type=search]").fill("Godambe")
    page.keyboard.press("Enter")
    page.wait_for_selector(RESULTS)
    assert page.eval_on_selector_all(RESULTS, ADDRESSES)[0].endswith("note-a-one-rate.html")
    visit.close()


def test_it_works_from_a_folder(browser, address: str) -> None:
    """With excerpts: a browser lets a file read no other, so the texts come with the search."""
    where = f"{(SITE / 'search').as_uri()}.html?q=theorem"
    visit = Visit(browser, where, viewport=DESKTOP)
    visit.page.wait_for_selector(RESULTS)
    assert visit.page.locator("#search-results p.context").count() > 5
    assert visit.errors == []
    visit.close()
