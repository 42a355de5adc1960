"""A hub that does not answer is not waited for."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, Queue
from threading import Thread
from time import monotonic
from typing import Any, TypeVar

PATIENCE = 10.0  # seconds for an answer to somebody who asked for weights
SLOWEST = 50_000  # bytes a second; a download that is slower counts as one that hangs
PIECE = 10 * 2**20  # bytes after which huggingface_hub says that a download goes on
DATA_SECONDS = 600.0  # for a whole data set, tens of megabytes
Answer = TypeVar("Answer")


# The hub: asked in a thread that is left alone when it takes too long. ``huggingface_hub`` itself
# waits for each *byte*, asks seven times, and no setting of it bounds the whole.


class Watch:
    """Until when the next sign of life from the hub is waited for."""

    def __init__(self, seconds: float) -> None:
        self.begin = monotonic()
        self.gave_up = False
        self.wait(seconds)

    def wait(self, seconds: float) -> None:
        self.until = monotonic() + seconds

    def wait_for_bytes(self, number: float) -> None:
        self.wait(2 * PATIENCE + number / SLOWEST)  # asked for its size first, then for itself

    def bars(self) -> type:
        """Progress bars that are signs of life, and end a download that nobody waits for any more."""
        from tqdm.auto import tqdm

        watch = self

        class Bar(tqdm):
            def __init__(self, *given: Any, name: str | None = None, **settings: Any) -> None:
                super().__init__(*given, **settings)

            def update(self, n: float | None = 1) -> bool | None:
                if watch.gave_up:
                    raise TimeoutError("nobody waits for this download any more")
                watch.wait_for_bytes(PIECE)
                return super().update(n)

        return Bar


def in_time(call: Callable[[], Answer], watch: Watch) -> Answer:
    """What ``call`` returns or raises; ``TimeoutError`` where ``watch`` waits in vain."""
    outcome: Queue[tuple[str, Any]] = Queue()

    def work() -> None:
        try:
            outcome.put(("returned", call()))
        except BaseException as error:
            outcome.put(("raised", error))

    Thread(target=work, daemon=True).start()
    while True:
        try:
            how, what = outcome.get(timeout=max(watch.until - monotonic(), 0))
        except Empty:
            if monotonic() < watch.until:
                continue
            watch.gave_up = True
            seconds = monotonic() - watch.begin
            raise TimeoutError(
                f"the hub did not answer in time (waited {seconds:.0f} s in all)"
            ) from None
        if how == "raised":
            raise what
        return what


def answers_about_data(name: str) -> bool:
    """Does the hub say in time what it has of a data set? Else what is in the cache may do."""
    from huggingface_hub import dataset_info

    try:
        in_time(lambda: dataset_info(name, timeout=PATIENCE), Watch(PATIENCE))
    except Exception:
        return False
    return True


@contextmanager
def offline() -> Iterator[None]:
    """The hub is not asked while the block runs, as with ``HF_HUB_OFFLINE``."""
    from huggingface_hub import constants

    usual = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = usual
