"""Hubs that do not answer: a hub is asked once, and then the cache has to do.

The one question goes without the repetitions of ``huggingface_hub``, which take minutes where there is
no network, and waits ``HF_HUB_ETAG_TIMEOUT`` seconds (its variable, 10 by default). A download that
has begun has the patience of ``huggingface_hub`` itself, ``HF_HUB_DOWNLOAD_TIMEOUT``.
"""

from collections.abc import Iterator
from contextlib import contextmanager


def answers_about_data(name: str) -> bool:
    """Check whether the hub lists the files of a data set."""
    from huggingface_hub import constants, dataset_info

    try:
        dataset_info(name, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except Exception:
        return False
    return True


@contextmanager
def offline() -> Iterator[None]:
    """Context in which the hub is not asked, as with ``HF_HUB_OFFLINE``."""
    from huggingface_hub import constants

    usual = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = usual
