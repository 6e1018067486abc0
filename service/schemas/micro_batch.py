"""Converts micro-batches that a request gives in tokens to sequences, while pydantic validates the
request: whoever reads its layouts and constraints finds sequences only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, ValidationInfo

from models.errors import Invalid
from service.schemas.layout import ConstraintFields, LayoutFields
from service.schemas.workload import WorkloadFields, sequences_in

Part = TypeVar("Part", LayoutFields, ConstraintFields)


def in_sequences(part: Part, info: ValidationInfo, place: str) -> Part:
    """Returns a layout or constraints with a micro-batch that is given in tokens converted to
    sequences. `place` is its field in the request, such as "layout", and `info` has the fields
    validated before it. Raises Invalid where the tokens are no whole sequences, or contradict
    `micro_batch`."""
    tokens = part.micro_batch_tokens
    if tokens is None or "workload" not in info.data:  # the workload is invalid: that is its error
        return part
    field = f"{place}.micro_batch_tokens"
    seq_len = _seq_len(info.data["workload"])
    if seq_len is None:
        rule = "needs workload.seq_len in the request, of which it must be a multiple"
        raise Invalid(field, tokens, rule)
    try:
        sequences = [sequences_in(count, seq_len) for count in _listed(tokens)]
    except ValueError as error:
        raise Invalid(field, tokens, str(error)) from None
    micro_batch = sequences if isinstance(tokens, list) else sequences[0]
    given = part.micro_batch if "micro_batch" in part.model_fields_set else None
    if given is not None and sorted(_listed(given)) != sorted(sequences):
        rule = (
            f"is {micro_batch} of seq_len = {seq_len}, and micro_batch = {given}: give one of the"
            " two"
        )
        raise Invalid(field, tokens, rule)
    return part.model_copy(update={"micro_batch": micro_batch})


def _listed(value: int | list[int]) -> list[int]:
    return value if isinstance(value, list) else [value]


def _seq_len(workload: WorkloadFields | Mapping[str, Any] | None) -> int | None:
    """Returns the sequence length of a workload, which may be whole or only the fields that a
    launch leaves open. None where it is not given."""
    if isinstance(workload, WorkloadFields):
        return workload.seq_len
    value = workload.get("seq_len") if workload else None
    # What a launch leaves open is validated later, and any other value is refused then.
    return value if type(value) is int and value > 0 else None


def _part_in_sequences(part: Part, info: ValidationInfo) -> Part:
    return in_sequences(part, info, str(info.field_name))


def layouts_in_sequences(layouts: list[LayoutFields], info: ValidationInfo) -> list[LayoutFields]:
    """Returns the layouts with their micro-batches in sequences. `info` names their field, and has
    the fields of the request that were validated before it."""
    return [
        in_sequences(layout, info, f"{info.field_name}[{i}]") for i, layout in enumerate(layouts)
    ]


LayoutForm = Annotated[LayoutFields, AfterValidator(_part_in_sequences)]
ConstraintForm = Annotated[ConstraintFields, AfterValidator(_part_in_sequences)]
