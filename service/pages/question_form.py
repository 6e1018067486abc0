"""The form for a question: its fields as they stand in the URL, and the body of a request to the
API that they make."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from models.errors import Invalid
from service.formats.launch.formats import format_of_stack
from service.pages.examples import EXAMPLES
from service.pages.glossary import LAYOUT
from service.resolve.catalog import Catalog

_WHOLE_NUMBER = re.compile(r"\d{1,3}(?:[, _]\d{3}){1,5}|\d{1,18}", re.ASCII)
"""Numbers of up to 18 digits: no limit of the API is as large, and Python reads none of 5,000."""
PINS = {name: LAYOUT[name].heading for name in ("tp", "pp", "cp", "ep", "micro_batch")}
"""Knobs of a layout that a form can fix, which are those that people ask about by name."""
PRECISIONS = ("bf16", "fp8", "fp16", "fp32")
DEFAULTS = {"seq_len": "8192", "stack": "megatron", "precision": "bf16"}
"""The values that an empty form begins with."""
_FIELDS = ("model", "config", "cluster", "chips", "seq_len", "batch", "stack", "precision")


@dataclass(frozen=True, slots=True)
class QuestionForm:
    """A question as somebody typed it."""

    values: Mapping[str, str]

    @classmethod
    def of(cls, sent: Mapping[str, str]) -> QuestionForm:
        """Returns the form with the fields that a URL has: those of the question, and the knobs
        that it fixes (PINS). Fields that it lacks are empty."""
        names = (*_FIELDS, *PINS)
        return cls({name: sent.get(name, "").strip() for name in names})

    @property
    def is_empty(self) -> bool:
        """Returns whether the form has neither a model nor a cluster."""
        return not any(self.values[name] for name in ("model", "config", "cluster", "chips"))

    @property
    def shown(self) -> dict[str, str]:
        """Returns the text of every field as the form shows it: defaults in a form that is
        empty."""
        return {**self.values, **DEFAULTS} if self.is_empty else dict(self.values)

    @property
    def query(self) -> dict[str, str]:
        """Returns the fields that are not empty, as the URL has them."""
        return {name: value for name, value in self.values.items() if value}

    def question(self) -> dict[str, Any]:
        """Returns the question as the body of a request. Empty fields are left out, so that the
        API's own sentences say what is required. A pasted config goes before the name of a model.
        Raises Invalid where the config is not JSON."""
        values = self.values
        cluster = without_empty(preset=values["cluster"], num_chips=whole_number(values["chips"]))
        workload = without_empty(
            seq_len=whole_number(values["seq_len"]),
            global_batch=whole_number(values["batch"]),
            precision=values["precision"],
        )
        return without_empty(
            model=_parsed_config(values["config"]) or values["model"],
            cluster=cluster,
            workload=workload,
            stack=values["stack"],
        )

    def constraints(self) -> dict[str, Any]:
        """Returns the degrees that the form fixes, by name."""
        return without_empty(**{name: whole_number(self.values[name]) for name in PINS})


def typed_cluster(sent: Mapping[str, str]) -> dict[str, Any] | None:
    """Returns the cluster of a form as a request has it; None where neither its name nor a number
    of chips is typed."""
    cluster = without_empty(
        preset=sent.get("cluster", "").strip(),
        num_chips=whole_number(sent.get("chips", "").strip()),
    )
    return cluster or None


def without_empty(**members: Any) -> dict[str, Any]:
    """Returns the arguments that are neither an empty text nor None, by name."""
    return {name: value for name, value in members.items() if value not in ("", None)}


def whole_number(text: str) -> int | str:
    """Returns the number in a text such as 2,048 or 2 048. Returns any other text as it is, which
    the schema then refuses by name."""
    return int(re.sub(r"\D", "", text)) if _WHOLE_NUMBER.fullmatch(text) else text


def number(text: str) -> float | str:
    """Returns the number in a text such as 2,048 or 0.9, as an integer where it is whole. Returns
    any other text as it is, which the schema then refuses by name."""
    whole = whole_number(text)
    try:
        value = float(whole)
    except ValueError:
        return text
    return int(value) if value.is_integer() else value


def _parsed_config(text: str) -> Any:
    """Returns the parsed config.json of a model; None for an empty text. Raises Invalid where it is
    not JSON."""
    if not text:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        rule = f"the pasted config.json is no JSON ({error}): paste the whole file"
        raise Invalid("model", None, rule) from None


def choices(catalog: Catalog) -> dict[str, Any]:
    """Returns the names that the form offers. Launchable stacks are those for which the service
    reads and writes launch scripts."""
    stacks = catalog.names("stacks")
    return {
        "models": catalog.names("architectures"),
        "clusters": [*catalog.names("chips"), *catalog.names("clusters")],
        "launchable_stacks": [name for name in stacks if format_of_stack(name)],
        "other_stacks": [name for name in stacks if not format_of_stack(name)],
        "precisions": PRECISIONS,
        "pins": PINS,
        "examples": EXAMPLES["ask"],
    }
