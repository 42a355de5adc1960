"""What a first visit to a page costs: bytes, requests, and how far the page shifts while it loads."""

from __future__ import annotations

import gzip

from visits import Visit

HEAVIEST = 850_000  # bytes, as a server sends them
MOST_REQUESTS = 30
LARGEST_SHIFT = 0.1  # cumulative layout shift; above it is what browsers call in need of work
PACKED = ("woff", "woff2", "png", "jpg")  # these are compressed already
PAGES = ["book/index", "book/01-masked-pretraining", "book/03-mask-rate-curve"]
PAGES += ["book/11-known-language", "book/12-bert", "book/14-masked-diffusion"]
PAGES += ["book/cheat-sheet", "book/map", "search"]
NETWORK_EXPLORER = ".network-explorer"
WEIGHTS = "known-language-weights.js"
COME_NEAR = "at => scrollTo(0, scrollY + at.getBoundingClientRect().top - innerHeight - 500)"
IS_HIDDEN = "document.documentElement.classList.contains('setting')"


def costs(visit: Visit) -> dict[str, object]:
    """What is too much on a page that was just loaded, with nothing kept of earlier visits.

    A network explorer's weights are asked for when a reader comes near, and count.
    """
    page = visit.settle()
    page.wait_for_load_state("networkidle")
    explorer = page.locator(NETWORK_EXPLORER)
    wrong_weights = len(asked_for(visit, WEIGHTS)) != 0
    if explorer.count():
        explorer.evaluate(COME_NEAR)
        page.locator(f"{NETWORK_EXPLORER}[data-ready=true]").wait_for()
        page.wait_for_load_state("networkidle")
        wrong_weights = wrong_weights or len(asked_for(visit, WEIGHTS)) != 1
    weight = 0
    for request in visit.finished:
        body = request.response().body()
        ending = request.url.partition("?")[0].rpartition(".")[2]
        weight += len(body) if ending in PACKED else len(gzip.compress(body, 6))
    shift = page.evaluate("shifted")
    return {
        "bytes": weight if weight >= HEAVIEST else 0,
        "requests": asked_for(visit) if len(visit.finished) > MOST_REQUESTS else [],
        "shift": shift if shift >= LARGEST_SHIFT else 0,
        "still hidden": page.evaluate(IS_HIDDEN),
        "weights that are not asked for once, near the explorer": wrong_weights,
    }


def asked_for(visit: Visit, name: str = "") -> list[str]:
    """Addresses that were loaded and have ``name`` in them."""
    return [request.url for request in visit.finished if name in request.url]
