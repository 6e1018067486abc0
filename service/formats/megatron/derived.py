"""The arguments that follow from others, as Megatron fills them in before it dumps them
(megatron/training/arguments.py, validate_args). A typed command line, completed in this way, can be
read like the dump of its run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase

from service.formats.launch.facts import facts
from service.formats.megatron.layers import PATTERNS, chunks_of


def filled_in(values: Mapping[str, str]) -> dict[str, str]:
    """Returns the arguments completed with those that follow from others, as Megatron completes
    them before it dumps them."""
    # A dump prints an enumeration with its class: AttnBackend.flash.
    arguments = {name: value.removeprefix("AttnBackend.") for name, value in values.items()}

    def is_unset(name: str) -> bool:
        return arguments.get(name, "None") in ("None", "")

    if arguments.get("recompute_activations") == "True":
        arguments["recompute_granularity"] = "selective"
    if arguments.get("moe_layer_recompute") == "True":
        arguments["recompute_granularity"] = "selective"
        modules = (
            "['core_attn']" if is_unset("recompute_modules") else arguments["recompute_modules"]
        )
        arguments["recompute_modules"] = modules.replace("]", ", 'moe']")
    if arguments.get("recompute_granularity") == "selective" and is_unset("recompute_modules"):
        arguments["recompute_modules"] = "['core_attn']"
    if arguments.get("num_experts") == "0":  # a dense model
        arguments["num_experts"] = "None"
    if is_unset("seq_length"):
        arguments["seq_length"] = arguments.get("encoder_seq_length", "None")
    if is_unset("num_layers"):
        arguments["num_layers"] = arguments.get("encoder_num_layers", "None")
    arguments |= _layer_counts(arguments)
    if not is_unset("window_size"):  # typed as 127,0 and dumped as (127, 0)
        arguments["window_size"] = f"({arguments['window_size'].strip('()[] ')})"
    hidden = _count(arguments.get("hidden_size"))
    if is_unset("ffn_hidden_size") and hidden is not None:
        arguments["ffn_hidden_size"] = str(_usual_width(hidden, arguments.get("swiglu") == "True"))
    if is_unset("padded_vocab_size"):
        arguments["padded_vocab_size"] = _padded_vocabulary(arguments)
    return arguments


def unpadded_vocabulary(values: Mapping[str, str]) -> int | None:
    """Returns the size of the vocabulary before padding, which depends on the tensor-parallel
    degree; None where it is not known."""
    size = _count(values.get("vocab_size"))
    return _count(vocabulary_of_tokenizer(values)) if size is None else size


def vocabulary_of_tokenizer(values: Mapping[str, str]) -> str | None:
    """Returns the number of tokens of a well-known public tokenizer, found by its name; None for
    any other. A tokenizer's type does not decide it, since tokenizers of many sizes share one."""
    model = values.get("tokenizer_model", "")
    sizes: Mapping[str, int] = facts("tokenizers")["sizes"]
    return next((str(size) for name, size in sizes.items() if fnmatchcase(model, name)), None)


def _layer_counts(values: Mapping[str, str]) -> dict[str, str]:
    """Returns the arguments for the number of layers and of modules of multi-token prediction
    that a layer pattern implies. They override the arguments that were typed."""
    pattern = next((values[name] for name in PATTERNS if values.get(name, "None") != "None"), None)
    if pattern is None:
        return {}
    # Each letter of a chunk is a layer. Quotation marks around the pattern are not.
    arguments = {"num_layers": str(sum(map(len, chunks_of(pattern.strip("'\"")))))}
    if modules := pattern.count("/"):  # a / stands before each module of multi-token prediction
        arguments["mtp_num_layers"] = str(modules)
    return arguments


def _usual_width(hidden: int, gated: bool) -> int:
    """Returns Megatron's default width of the MLP: four times the hidden size. A gated MLP has
    two thirds of that, rounded down to a multiple of 64."""
    return int((4 * hidden * 2 / 3) / 64) * 64 if gated else 4 * hidden


def _padded_vocabulary(values: Mapping[str, str]) -> str:
    """Returns the size of the vocabulary padded to a multiple of --make-vocab-size-divisible-by
    times the tensor-parallel ranks (megatron/training/vocab_utils.py); "None" where it is not
    known."""
    size = unpadded_vocabulary(values)
    divisor = _count(values.get("make_vocab_size_divisible_by", "128"))
    tp = _count(values.get("tensor_model_parallel_size", "1"))
    is_padded = values.get("pad_vocab_size") != "False"
    if size is None or divisor is None or tp is None or not is_padded:
        return str(size)
    multiple = max(divisor * tp, 1)
    return str(-(-size // multiple) * multiple)


def _count(text: str | None) -> int | None:
    """Returns a whole number; None for any other text. No count of a job has more digits."""
    return int(text) if text and re.fullmatch(r"\d{1,15}", text, re.ASCII) else None
