"""Types of ``transformers`` in annotations, checked by name: importing them takes seconds; token ids."""

from typing import TYPE_CHECKING, Annotated, Any

from torch import Tensor

from mpt_lml.checks import require_entries


class OfClass:
    """An object whose class, or one it inherits from, has this name: ``Annotated[Any, OfClass(...)]``."""

    def __init__(self, class_name: str) -> None:
        self.class_name = class_name

    def __call__(self, name: str, value: Any) -> None:
        names = {base.__name__ for base in type(value).__mro__}
        if self.class_name not in names:
            raise TypeError(f"{name} must be of type {self.class_name}, got {value!r}.")


if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    Network = PreTrainedModel
    Tokenizer = PreTrainedTokenizerBase
else:
    Network = Annotated[Any, OfClass("PreTrainedModel")]
    Tokenizer = Annotated[Any, OfClass("PreTrainedTokenizerBase")]


def require_ids(
    name: str, ids: Tensor, count: int, hint: str = "It comes from another tokenizer."
) -> None:
    """Check that ``ids`` are 0..``count`` − 1; ``hint`` is a sentence that follows a refusal."""
    require_entries(name, ids, (ids < 0) | (ids >= count), f"0..{count - 1}", hint)
