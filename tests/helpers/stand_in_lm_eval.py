"""A stand-in for what ``mpt_score.lm_eval`` uses of lm-evaluation-harness, where that is missing.

Where it is installed, a test compares the two.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from types import ModuleType
from typing import Any

PASSED = {"batch_size": 1, "max_batch_size": None, "device": "cuda:0"}
"""What the command line passes to every model where nobody has named it."""


@dataclass
class Instance:
    request_type: str
    doc: dict[str, Any]
    arguments: tuple[str, ...]
    idx: int
    metadata: tuple[str | None, int | None, int | None] = (None, None, None)

    @property
    def args(self) -> tuple[str, ...]:
        return self.arguments

    @property
    def task_name(self) -> str | None:
        return self.metadata[0]

    @property
    def doc_id(self) -> int | None:
        return self.metadata[1]


class LM(abc.ABC):
    @abc.abstractmethod
    def loglikelihood(self, requests: Any) -> Any: ...

    @abc.abstractmethod
    def loglikelihood_rolling(self, requests: Any) -> Any: ...

    @abc.abstractmethod
    def generate_until(self, requests: Any) -> Any: ...

    @classmethod
    def create_from_arg_obj(cls, arg_dict: dict[str, Any], additional_config: dict[str, Any]) -> LM:
        passed = {name: value for name, value in additional_config.items() if value is not None}
        return cls(**arg_dict, **passed)


def modules() -> dict[str, ModuleType]:
    """The modules by name, with a registry of their own."""
    models: dict[str, type] = {}

    def register_model(name: str) -> Any:
        def register(model: type) -> type:
            models[name] = model
            return model

        return register

    names = {
        "lm_eval": {},
        "lm_eval.api": {},
        "lm_eval.__main__": {"cli_evaluate": lambda: None},
        "lm_eval.api.instance": {"Instance": Instance},
        "lm_eval.api.model": {"LM": LM},
        "lm_eval.api.registry": {"register_model": register_model, "get_model": models.get},
    }
    made = {}
    for name, content in names.items():
        made[name] = ModuleType(name)
        vars(made[name]).update(content)
    return made
