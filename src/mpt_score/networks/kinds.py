"""Types of ``transformers`` in annotations, checked by name: importing them takes seconds."""

from typing import TYPE_CHECKING, Annotated, Any


class OfClass:
    """An object whose class, or one it inherits from, has this name: ``Annotated[Any, OfClass(...)]``."""

    def __init__(self, class_name: str) -> None:
        self.class_name = class_name

    def __call__(self, name: str, value: Any) -> None:
        names = {base.__name__ for base in type(value).__mro__}
        if self.class_name not in names:
            raise TypeError(f"{name} must be of type {self.class_name}, got {value!r}.")


if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    Network = PreTrainedModel
    Tokenizer = PreTrainedTokenizerBase
else:
    Axes = Annotated[Any, OfClass("Axes")]
    Network = Annotated[Any, OfClass("PreTrainedModel")]
    Tokenizer = Annotated[Any, OfClass("PreTrainedTokenizerBase")]
