"""The configuration of NeMo 1 as Megatron's arguments. NeMo's logger prints it as one line of
`cfg/name : value`.

Two more lines say what a run is: one has the padded vocabulary, the other the number of processes
in the group.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from service.formats.launch.facts import facts
from service.formats.logs.lines import Log, printable
from service.formats.megatron.versions import GATED_ACTIVATIONS, VERSIONS

_LINE_MARK, _SEPARATOR = " - PARAMETER cfg/", "  cfg/"
_VOCABULARY = "Padded vocab_size:"
_PADDED = re.compile(r"Padded vocab_size:\s{0,20}(\d{1,12})\b")
_GROUP = "MEMBER: "
_MEMBER = re.compile(r"MEMBER: \d{1,12}/(\d{1,12})\b")
_MAX_PARAMETERS = 4000  # several times as many as a configuration of NeMo has
_LINE_REACH = 5000  # characters of a line that are searched, so that no log takes long

_SHARDED_OPTIMIZERS = {"distributed_fused_adam", "mcore_distributed_optim"}
_ADAMS = {*_SHARDED_OPTIMIZERS, "adam", "adamw", "fused_adam", "megatron_fused_adam"}
_HALF_PRECISION_FLAGS = {"bf16": "bf16", "bf16-mixed": "bf16", "16": "fp16", "16-mixed": "fp16"}


def arguments(log: Log) -> Mapping[str, str]:
    """Returns the parameters of NeMo 1 under Megatron's names; none where no line prints them.
    Of several such lines the last counts."""
    parameters = _read_parameters(log)
    if not parameters:
        return {}
    table = facts(VERSIONS)["nemo"]  # NeMo's names, beside those of Megatron's versions
    # Megatron's arguments that NeMo has no parameter for, with the values that NeMo uses.
    values: dict[str, str] = dict(table["absent"])
    megatron_names = {**{name: name for name in table["same"]}, **table["renamed"]}
    for name, megatron_name in megatron_names.items():
        if name in parameters:
            values[megatron_name] = parameters[name]
    if "activations_checkpoint_granularity" not in parameters:
        # A method without a granularity recomputes whole layers.
        method = parameters.get("activations_checkpoint_method", "None")
        values["recompute_granularity"] = "None" if method in ("", "None") else "full"
    values |= _derived_arguments(parameters)
    for name, mark, pattern in (
        ("padded_vocab_size", _VOCABULARY, _PADDED),
        ("world_size", _GROUP, _MEMBER),
    ):
        for line in log.lines(mark):
            if match := pattern.search(line.text[:_LINE_REACH]):
                values[name] = match.group(1)
    return values


def _read_parameters(log: Log) -> dict[str, str]:
    """Returns the parameters, by name, of the last line such as " - PARAMETER
    cfg/micro_batch_size : 1 cfg/precision : bf16"."""
    last = None
    for line in log.lines(_LINE_MARK):
        last = line
    if last is None:
        return {}
    pairs = last.text.partition(_LINE_MARK)[2].split(_SEPARATOR)[:_MAX_PARAMETERS]
    names_and_values = (pair.partition(" : ") for pair in pairs)
    return {name: printable(value.strip()) for name, _, value in names_and_values}


def _derived_arguments(parameters: Mapping[str, str]) -> dict[str, str]:
    """Returns the arguments of Megatron that NeMo expresses by other parameters, such as an
    optimizer's name for use_distributed_optimizer."""
    optimizer = parameters.get("optim/name", "")
    half = _HALF_PRECISION_FLAGS.get(parameters.get("precision", ""))
    # As many groups as heads are no groups: each head has its own keys and values.
    grouped = parameters.get("num_query_groups", "None") not in (
        "None",
        parameters.get("num_attention_heads"),
    )
    return {
        "group_query_attention": str(grouped),
        "swiglu": str(parameters.get("activation") in GATED_ACTIVATIONS),
        "untie_embeddings_and_output_weights": str(
            parameters.get("share_embeddings_and_output_weights") == "False"
        ),
        "use_distributed_optimizer": str(optimizer in _SHARDED_OPTIMIZERS),
        "optimizer": "adam" if optimizer in _ADAMS else optimizer,
        **({half: "True"} if half else {}),
    }
