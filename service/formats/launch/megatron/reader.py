"""What Megatron-LM is told: its arguments as they are typed, as it dumps them, or as YAML.

Arguments as they are typed leave out what Megatron fills in: its defaults, and what follows from
other arguments (megatron/training/arguments.py, validate_args). Both are filled in here; what a
dump of the run would say is then read by `service.formats.megatron.arguments`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import Any

from models.errors import Invalid
from models.spec.switches import Condition, read_switches, releases
from service.formats.launch.documents import read_yaml
from service.formats.launch.job import NO_CHANGES, Changes, LaunchReading
from service.formats.launch.megatron import fields as megatron_fields
from service.formats.launch.megatron.fields import flag_of_argument, flags
from service.formats.launch.megatron.job_arguments import PIPELINE_INSIDE
from service.formats.launch.megatron.refusals import refusals
from service.formats.launch.megatron.stages import (
    has_early_prediction,
    has_empty_chunks,
    layers_per_chunk,
    virtual_stages,
)
from service.formats.launch.megatron.writer import FRAMEWORK, NAME, words
from service.formats.megatron.arguments import (
    HALF_DTYPES,
    data_parallel,
    data_parallel_axes,
    expert_axes,
    read_memory_knobs,
    read_recompute,
    read_workload,
    require_known_version,
)
from service.formats.megatron.layer_pattern import layer_switches
from service.formats.megatron.layers import (
    PATTERNS,
    chunks_of,
    has_layers_of_kinds,
    prediction_modules,
)
from service.formats.megatron.models import read_model, require_layer_pattern
from service.formats.megatron.values import Arguments
from service.formats.megatron.versions import in_todays_names
from service.formats.settings.release import known_release
from service.formats.settings.reservation import Reservation
from service.formats.settings.settings import Settings, SortedSettings
from service.formats.settings.stop import Stops
from service.formats.shell.command import Command, split_command
from service.formats.shell.faults import PATH
from service.formats.shell.files import NO_FILES, LaunchFiles

_DUMPED = re.compile(r"(?:^|\s)([A-Za-z_]\w{0,99}) \.{1,60} (.*)", re.ASCII)
_FEWEST_DUMPED = 3
_YAML_LINE = re.compile(r"\s*(?:-\s+)?-{0,2}[A-Za-z_][\w-]*\s*:(\s.*)?", re.ASCII)
_ARGUMENTS = ("ARGS", "ARGUMENTS")
"""How the object of a recipe is called that has the arguments."""
_VARIABLES = "ENV_VARS"
"""The object of a recipe that has environment variables."""
_MODEL = ("num_layers", "hidden_size", "num_attention_heads")
_TOKENIZERS = {"Llama2Tokenizer": "32000", "GPT2BPETokenizer": "50257"}
"""The vocabularies of tokenizers that have always the same."""
_BALANCING = {
    "aux_loss": "micro_batch_loss",
    "seq_aux_loss": "micro_batch_loss",
    "global_aux_loss": "global_batch_loss",
}
_CONTEXT = {"p2p": "ring", "a2a": "ulysses", "allgather": "allgather", "a2a+p2p": "ring"}
_SAME_SWITCH = {"--fp4-param-gather": "--fp8-param-gather"}
_COUNTS = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "num_layers_per_virtual_pipeline_stage",
    "num_virtual_stages_per_pipeline_rank",
    "num_distributed_optimizer_instances",
    "recompute_num_layers",
    "micro_batch_size",
)
"""Arguments that must be at least 1."""
_ENDS = ("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers")
_LAYER_PATTERNS = ("moe_layer_freq", "window_attn_skip_freq", "linear_attention_freq")
_MOST_SWITCHES = 1024
_NEEDED_BY = {"dsa": ("apply_rope_fusion",)}
"""Arguments that a kind of attention needs, so that predictions of it assume what they say."""
_FULL_DTYPES = ("fp32", "float32", "torch.float32")
_DERIVED = re.compile(
    r"world_size|rank|local_rank|data_parallel_size|params_dtype|padded_vocab_size|iteration"
    r"|consumed_\w+|skipped_\w+|virtual_pipeline_model_parallel_size|variable_seq_lengths"
    r"|transformer_pipeline_model_parallel_size|do_\w+|cpu_offloading|use_custom_fsdp"
    r"|use_layer_wise_distributed_optimizer|\w*gtp_weight_remat_size|use_dist_ckpt|async_\w+"
)
"""Arguments of a dump that no flag sets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What a text says, whatever its form."""

    values: Mapping[str, str]
    """The text of each argument, with the defaults of those that are not given."""
    given: Mapping[str, str]
    """What was written of each argument that is given, by its flag."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """The values of what is no argument of Megatron."""
    reservations: tuple[Reservation, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, Any]:
        """What is set, by flag, as writers have it."""
        values = {name: self.values.get(flags()[name].argument, "None") for name in self.given}
        return {
            name: megatron_fields.value_of(flags()[name], text) for name, text in values.items()
        }

    def changed(self, changes: Changes) -> Source:
        """The source with some flags set otherwise."""
        typed = megatron_fields.parse(
            words({name: value for name, value in changes.items() if value is not None})
        )
        arguments = {flags()[name].argument for name in changes}
        others = {
            name: text
            for name, text in self.given.items()
            if flags()[name].argument not in arguments
        }
        unset = {name: megatron_fields.defaults()[name] for name in arguments}
        return replace(
            self,
            values={**self.values, **unset, **typed.values},
            given={**others, **typed.written},
        )


def read(
    text: str,
    version: str | None = None,
    *,
    changes: Changes = NO_CHANGES,
    files: LaunchFiles = NO_FILES,
) -> LaunchReading:
    """What the arguments of Megatron say. Raises Invalid for what its parser refuses."""
    release = known_release(NAME, version)
    source = _source(text, files).changed(changes)
    stops = Stops()
    given = without_refused(
        Arguments(in_todays_names(filled_in(source.values)), flag_of_argument()), stops
    )
    sorted_out = _sorted_out(given, source)
    found = reading(
        given,
        stops,
        stack_id=NAME,
        framework=FRAMEWORK,
        release=release,
        environment=source.environment,
        switches=_switch_arguments(given, source),
        sorted_out=sorted_out,
    )
    return replace(found, unwritten=_unwritten(found, source.values), settings=source.settings)


def without_refused(given: Arguments, stops: Stops) -> Arguments:
    """The arguments with other values for those that Megatron stops at whatever the others are."""
    for name in _COUNTS:
        count = stops.attempt(partial(given.optional, name), None)
        if count is None and given.word(name) is not None:
            given = given.replaced(**{name: "1"})
    layers = given.optional("num_layers")
    if layers is None:
        return given
    for name in _LAYER_PATTERNS:
        is_full = stops.attempt(partial(require_layer_pattern, given, name, layers), False)
        if not is_full:
            pattern = _cut_pattern(given.word(name) or "", layers)
            cure = f"{given.called(name)} {pattern}, as the model is read here"
            stops.found[-1] = replace(stops.found[-1], cure=cure)
            given = given.replaced(**{name: pattern})
    return given


def reading(
    given: Arguments,
    stops: Stops,
    *,
    stack_id: str,
    framework: str,
    release: str | None,
    environment: Mapping[str, str],
    switches: Mapping[str, Any],
    sorted_out: SortedSettings,
) -> LaunchReading:
    """The reading of arguments that are filled in. `switches` are the arguments that are given, as
    models.spec.switches calls them."""
    pp = given.count("pipeline_model_parallel_size", 1)
    virtual = stops.attempt(lambda: virtual_stages(given, pp), 1)
    given = given.replaced(virtual_pipeline_model_parallel_size=str(virtual))
    for part in ("model", "layout"):
        require_known_version(given, part)
    layout = _layout(given, pp, virtual, stops)
    workload = _workload(given)
    is_newest = stack_id == NAME and release is None
    # Megatron-LM takes one micro-batch of each rank where it is told no global batch.
    takes_one = stack_id == NAME and "global_batch" not in workload
    return LaunchReading(
        format=stack_id,
        framework=framework,
        version=release or list(releases(stack_id))[-1],
        model=_model(given),
        workload=workload,
        stack=_stack(given, layout, stack_id, release, switches),
        layout=layout,
        num_devices=given.optional("world_size"),
        num_micro_batches=1 if takes_one else None,
        stops=(
            *stops.found,
            *sorted_out.stops,
            *refusals(given, environment, is_newest=is_newest),
        ),
        reservations=sorted_out.reservations,
        ignored=sorted_out.no_account,
    )


def _unwritten(found: LaunchReading, values: Mapping[str, str]) -> dict[str, str]:
    """Where values of a reading come from that nobody wrote."""
    origins = {}
    if found.num_micro_batches is not None:
        origins["num_micro_batches"] = "what Megatron-LM takes without --global-batch-size"
    tokenizer = values.get("tokenizer_type", "None")
    sizes = {values.get(name, "None") for name in ("vocab_size", "padded_vocab_size")}
    if tokenizer in _TOKENIZERS and sizes == {"None"}:
        size = _TOKENIZERS[tokenizer]
        origins["model.vocab_size"] = f"the {size} entries of {tokenizer}, padded as Megatron does"
    return origins


# -- the forms of a text


def _source(text: str, files: LaunchFiles) -> Source:
    dumped = [match for line in text.splitlines() if (match := _DUMPED.search(line[:5000]))]
    if len(dumped) >= _FEWEST_DUMPED:
        return _of_dump({match.group(1): match.group(2).strip() for match in dumped})
    lines = [line for line in text.splitlines() if line.strip() and line.lstrip()[0] != "#"]
    if lines and all(map(_YAML_LINE.fullmatch, lines)):
        return _of_document(read_yaml(text))
    command = split_command(text, files)
    source = _of_words(command.words)
    of_ranks = {"world_size": str(command.num_ranks)} if command.num_ranks else {}
    return replace(
        source,
        values={**source.values, **of_ranks},
        reservations=(*source.reservations, *_conditional(command)),
        environment=command.environment,
    )


def _of_words(words: Iterable[str]) -> Source:
    """What flags say as they are typed, those of forks among them."""
    facts = megatron_fields.table().facts
    typed = megatron_fields.parse([facts["same_as"].get(word, word) for word in words])
    of_deepspeed = {
        argument: typed.unknown[name] or "True"
        for name, argument in facts["of_deepspeed"].items()
        if name in typed.unknown
    }
    return Source(
        values={**megatron_fields.defaults(), **typed.values, **of_deepspeed},
        given=typed.written,
        unknown={
            name: value
            for name, value in typed.unknown.items()
            if name not in facts["of_deepspeed"]
        },
        reservations=tuple(map(_stray, typed.strays)),
    )


def _stray(word: str) -> Reservation:
    return Reservation(
        setting=word,
        reason="it is the value of no flag",
        cure="leave it out, or write the flag in front of it",
    )


def _conditional(command: Command) -> Iterable[Reservation]:
    """Assignments that may or may not have run, and hold flags that may matter or another value of
    a variable."""
    for assignment in command.in_branches:
        names = re.findall(r"(?<![\w-])--[a-z][\w-]{0,99}", assignment, re.ASCII)
        is_value = not names and assignment in command.replaced_in_branches
        if is_value or not all(map(megatron_fields.is_harmless, names)):
            yield Reservation.of_branch(assignment)


def _of_dump(values: Mapping[str, str]) -> Source:
    """What values by the name of the argument say, as Megatron dumps them."""
    by_name = flag_of_argument()
    given = {}
    unknown = {}
    for name, value in values.items():
        if name in by_name:
            given[by_name[name]] = f"{name} {value}"
        elif not _DERIVED.fullmatch(name) and value not in ("None", "False"):
            unknown[name] = value
    return Source(values={**megatron_fields.defaults(), **values}, given=given, unknown=unknown)


def _of_document(document: Any) -> Source:
    """What a YAML document of flags or arguments says, with dashes or underscores. A recipe has
    them in an object of its own, beside one of environment variables."""
    same = megatron_fields.table().facts["same_as"]
    typed: dict[str, Any] = {}
    others: dict[str, str] = {}
    for written, value in _leaves(_arguments_of(document)):
        name = written.lstrip("-").replace("-", "_")
        flag = f"--{name.replace('_', '-')}"
        if same.get(flag, flag) in flags():
            typed[flag] = value
        else:
            others[name] = str(value)
    source = _of_words(_words_of(typed))
    dumped = _of_dump(others)
    environment = document.get(_VARIABLES) if isinstance(document, Mapping) else None
    return replace(
        source,
        values={**source.values, **others},
        given={**source.given, **dumped.given},
        unknown={**source.unknown, **dumped.unknown},
        environment={
            str(name): str(value)
            for name, value in (environment if isinstance(environment, Mapping) else {}).items()
        },
    )


def _arguments_of(document: Any) -> Any:
    """The object of a recipe that has the arguments; the whole document where there is none."""
    if not isinstance(document, Mapping):
        return {}
    named = [value for name, value in document.items() if str(name).upper().endswith(_ARGUMENTS)]
    objects = [value for value in named if isinstance(value, Mapping)]
    return {name: value for each in objects for name, value in each.items()} or document


def _words_of(values: Mapping[str, Any]) -> Iterable[str]:
    """Flags of a document as they are typed; false and null leave one out."""
    for flag, value in values.items():
        if value is True:
            yield flag
            if flag in flags() and flags()[flag].takes_value:
                yield "True"
        elif value not in (False, None):
            yield flag
            yield from map(str, value) if isinstance(value, list) else str(value).split()


def _leaves(document: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(document, Mapping):
        for name, value in document.items():
            if isinstance(value, Mapping):
                yield from _leaves(value)
            else:
                yield str(name), value


# -- what Megatron fills in


def filled_in(values: Mapping[str, str]) -> dict[str, str]:
    """The arguments with those that follow from others, as a dump would have them."""
    found = {name: value.removeprefix("AttnBackend.") for name, value in values.items()}

    def is_unset(name: str) -> bool:
        return found.get(name, "None") in ("None", "")

    if found.get("recompute_activations") == "True":
        found["recompute_granularity"] = "selective"
    if found.get("moe_layer_recompute") == "True":
        found["recompute_granularity"] = "selective"
        modules = "['core_attn']" if is_unset("recompute_modules") else found["recompute_modules"]
        found["recompute_modules"] = modules.replace("]", ", 'moe']")
    if found.get("recompute_granularity") == "selective" and is_unset("recompute_modules"):
        found["recompute_modules"] = "['core_attn']"
    if found.get("num_experts") == "0":
        found["num_experts"] = "None"
    if is_unset("seq_length"):
        found["seq_length"] = found.get("encoder_seq_length", "None")
    if is_unset("num_layers"):
        found["num_layers"] = found.get("encoder_num_layers", "None")
    found |= _of_pattern(found)
    if not is_unset("window_size"):
        found["window_size"] = f"({found['window_size'].strip('()[] ')})"
    hidden = found.get("hidden_size", "None")
    if is_unset("ffn_hidden_size") and hidden.isdecimal():
        found["ffn_hidden_size"] = str(_usual_width(int(hidden), found.get("swiglu") == "True"))
    if is_unset("padded_vocab_size"):
        found["padded_vocab_size"] = _padded_vocabulary(found)
    return found


def _of_pattern(values: Mapping[str, str]) -> dict[str, str]:
    """The numbers of layers and of modules of multi-token prediction that a pattern has, which go
    before those that are said by themselves."""
    pattern = next((values[name] for name in PATTERNS if values.get(name, "None") != "None"), None)
    if pattern is None:
        return {}
    found = {"num_layers": str(sum(map(len, chunks_of(pattern.strip("'\"")))))}
    if modules := prediction_modules(pattern):
        found["mtp_num_layers"] = str(modules)
    return found


def _usual_width(hidden: int, gated: bool) -> int:
    """The width of the MLP where nobody says: four times the hidden size, or two thirds of that in
    multiples of 64 for each of the two halves of a gated one."""
    return int((4 * hidden * 2 / 3) / 64) * 64 if gated else 4 * hidden


def _padded_vocabulary(values: Mapping[str, str]) -> str:
    """The vocabulary in multiples of --make-vocab-size-divisible-by times the tensor-parallel
    ranks (megatron/training/vocab_utils.py)."""
    size = values.get("vocab_size", "None")
    if not size.isdecimal():
        size = _TOKENIZERS.get(values.get("tokenizer_type", ""), "None")
    divisor = values.get("make_vocab_size_divisible_by", "128")
    tp = values.get("tensor_model_parallel_size", "1")
    is_padded = values.get("pad_vocab_size") != "False" and divisor.isdecimal() and tp.isdecimal()
    if not size.isdecimal() or not is_padded:
        return size
    multiple = max(int(divisor) * int(tp), 1)
    return str(-(-int(size) // multiple) * multiple)


# -- the parts of a question


def _model(given: Arguments) -> dict[str, Any] | None:
    """The model; None where the arguments leave it to be said beside them."""
    return read_model(given) if any(map(given.word, _MODEL)) else None


def _workload(given: Arguments) -> dict[str, Any]:
    """The workload, without what is left to be said beside the arguments."""
    is_sparse = given.word("num_experts") is not None
    stated = dict(given.values)
    seq_length, batch = given.optional("seq_length"), given.optional("global_batch_size")
    # These stand in for what may be said beside the arguments.
    stated |= {"seq_length": str(seq_length or 1), "global_batch_size": str(batch or 1)}
    workload = dict(read_workload(Arguments(stated, given.flags)))
    if seq_length is None:
        del workload["seq_len"]
    if batch is None:
        del workload["global_batch"]
    if is_sparse:
        workload["load_balancing"] = _load_balancing(given)
    return workload


def _load_balancing(given: Arguments) -> str:
    if given.flag("moe_router_enable_expert_bias"):
        return "bias"
    types = re.findall(r"\w{1,40}", given.word("moe_router_load_balancing_type") or "", re.ASCII)
    has_weight = re.search(r"[1-9]", given.word("moe_aux_loss_coeff") or "") is not None
    if types == ["none"] and has_weight:
        types = ["aux_loss"]  # the default, of which the weight alone was given
    return next((_BALANCING[name] for name in types if name in _BALANCING), "none")


def _cut_pattern(text: str, layers: int) -> str:
    """A pattern for as many layers: cut where it has more, and going on like its last layer."""
    switches = layer_switches(text.replace(" ", ""), _MOST_SWITCHES)[:layers]
    switches += switches[-1:] * (layers - len(switches))
    runs = [f"[{int(is_on)}]*{len(list(run))}" for is_on, run in groupby(switches)]
    return f"({'+'.join(runs)})" if runs else "1"


def _layout(given: Arguments, pp: int, virtual: int, stops: Stops) -> dict[str, Any]:
    tp = given.count("tensor_model_parallel_size", 1)
    cp = given.count("context_parallel_size", 1)
    dp = None
    is_divided = given.count("world_size", 0, least=0) % (tp * pp * cp) == 0
    if is_divided and (given.word("world_size") or given.word("data_parallel_size")):
        dp = data_parallel(given, tp * pp * cp)
    no_chunks: list[int] = []
    chunks = stops.attempt(lambda: layers_per_chunk(given, pp, virtual), no_chunks)
    layers = given.optional("num_layers") or given.count("num_layers", 10**4)
    undivided = given.replaced(num_distributed_optimizer_instances="1")
    layout: dict[str, Any] = {
        "tp": tp,
        "pp": pp,
        "cp": cp,
        **stops.attempt(lambda: data_parallel_axes(given, dp), data_parallel_axes(undivided, dp)),
        **expert_axes(given, tp),
        "micro_batch": given.count("micro_batch_size"),
        "schedule": "interleaved" if virtual > 1 else "1f1b",
        "virtual_stages": virtual,
        "balanced": len(set(chunks)) > 1,
        **stops.attempt(
            lambda: read_recompute(given, layers, pp * virtual), {"recompute": "selective"}
        ),
        "sequence_parallel": tp > 1 and given.flag("sequence_parallel"),
        **read_memory_knobs(given),
    }
    if layout["balanced"]:
        layout["recompute_layers"] = 0
    if layout["balanced"] and all(chunks[1:-1]) and len(chunks) == pp * virtual:
        layout["layers_per_chunk"] = chunks
    if given.flag("use_tp_pp_dp_mapping"):
        layout["placement"] = list(PIPELINE_INSIDE)
    return layout


def _stack(
    given: Arguments,
    layout: Mapping[str, Any],
    stack_id: str,
    release: str | None,
    switches: Mapping[str, Any],
) -> dict[str, Any]:
    """The stack, with its switches as the arguments and the release have them."""
    try:
        fields = read_switches(
            stack_id, switches, release, lambda condition: _holds(condition, given, layout)
        )
    except Invalid as error:
        raise Invalid(PATH, error.value, error.rule) from None
    return {"name": stack_id, **fields, **_stack_of_layout(given, layout)}


def _stack_of_layout(given: Arguments, layout: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of the stack that are no switches, but arguments decide all the same."""
    found: dict[str, Any] = {}
    if layout["tp"] > 1 and not layout["sequence_parallel"]:
        found["sequence_parallel"] = [True, False]
    if layout["cp"] > 1:
        types = re.findall(r"[\w+]{1,40}", given.word("cp_comm_type") or "", re.ASCII)
        found["context"] = _CONTEXT.get(types[0] if types else "p2p", "ring")
    if "global_aux_loss" in (given.word("moe_router_load_balancing_type") or ""):
        # Its statistics run over the micro-batches so far (core/transformer/moe/router.py).
        found["running_balance"] = True
    return found


def _switch_arguments(given: Arguments, source: Source) -> dict[str, Any]:
    """The arguments that are given, by flag, as models.spec.switches has them."""
    found: dict[str, Any] = {}
    for name in source.given:
        flag = flags()[name]
        value = given.word(flag.argument)
        if flag.takes_value:
            found[name] = value
        elif value == str(flag.kind != "StoreFalse"):
            found[_SAME_SWITCH.get(name, name)] = True
    return found


def _holds(condition: Condition, given: Arguments, layout: Mapping[str, Any]) -> bool:
    """Whether a condition of a switch holds, as far as arguments say."""
    is_sparse = given.word("num_experts") is not None
    is_low = any(given.word(name) not in (None, "False") for name in ("fp8", "fp4"))
    known: dict[str, bool] = {
        "tp": layout["tp"] > 1,
        "sp": layout["sequence_parallel"],
        "pp": layout["pp"] > 1,
        "cp": layout["cp"] > 1,
        "ep": layout["ep"] > 1,
        "ep_beside": layout["ep"] > 1,
        "interleaved": layout["virtual_stages"] > 1,
        "moe": is_sparse,
        "dense": not is_sparse,
        "zero_1_2": layout["zero_stage"] in (1, 2),
        "zero_3": layout["zero_stage"] == 3,
        "low_precision_zero": is_low and layout["zero_stage"] > 0,
        "never": False,
    }
    return known.get(condition, True)


# -- what is not read


def _sorted_out(given: Arguments, source: Source) -> SortedSettings:
    """What was given, by what it means for an answer."""
    settings = Settings(megatron_fields.table())
    needed = _NEEDED_BY.get(given.word("experimental_attention_variant") or "", ())
    for name, written in source.given.items():
        argument = flags()[name].argument
        if argument in needed:
            continue
        settings.put(name, given.values.get(argument, "None"))
        settings.written[name] = written
        _reserve_half_read(settings, name, argument, given)
    for name, value in source.unknown.items():
        settings.put(name, value)
        settings.written[name] = f"{name} {value}".strip()
    for reservation in source.reservations:
        settings.note(reservation)
    return settings.sorted_out()


def _reserve_half_read(settings: Settings, name: str, argument: str, given: Arguments) -> None:
    """Note an argument that is read where its value means more than what is read of it."""
    words = half_read(argument, given)
    if words is not None:
        settings.reserve(name, *words)


def half_read(argument: str, given: Arguments) -> tuple[str, str] | None:
    """What an argument that is read means beyond what is read of it, and what to do; None where it
    means no more."""
    if argument == "pipeline_model_parallel_layout" and has_early_prediction(given):
        return "multi-token prediction is read as on the last stage", "write m in front of L"
    if argument == "moe_expert_capacity_factor" and _pads_no_experts(given):
        reason = "an expert that gets fewer tokens is read as padded"
        return reason, "use --moe-pad-expert-input-to-capacity beside it"
    if argument in _ENDS and given.count("pipeline_model_parallel_size", 1) == 1:
        built, layers = given.optional(argument), given.optional("num_layers")
        if built not in (None, layers):
            reason = f"with one pipeline stage Megatron builds {built} of the {layers} layers"
            return f"{reason}, and all are read", "leave it out, or use a pipeline"
    if _is_half_read(argument, given):
        return "a part of what it says is not described", "use a value that is simpler"
    return None


def _pads_no_experts(given: Arguments) -> bool:
    """Whether tokens are dropped, and experts that get few not padded."""
    factor = given.number("moe_expert_capacity_factor") or 0
    return factor > 0 and not given.flag("moe_pad_expert_input_to_capacity")


def _is_half_read(argument: str, given: Arguments) -> bool:
    if argument == "cp_comm_type":
        types = set(re.findall(r"[\w+]{1,40}", given.word(argument) or "", re.ASCII))
        return len(types) > 1 or "a2a+p2p" in types
    if argument in ("exp_avg_dtype", "exp_avg_sq_dtype"):
        both = {given.word("exp_avg_dtype"), given.word("exp_avg_sq_dtype")}
        return not any(map(both.issubset, ({*_FULL_DTYPES}, {*HALF_DTYPES})))
    if argument == "pipeline_model_parallel_layout":
        return has_empty_chunks(given)
    if argument == "moe_shared_expert_gate":
        return not has_layers_of_kinds(given)
    if argument == "recompute_num_layers":
        return given.word("recompute_method") == "uniform" and given.count(argument, 1) > 1
    return False
