"""Compares a training log with what a request says of the run, or with the answer that it is linked
to: the arguments that it dumps, the facts that it states, the devices that it names, and what its
steps print beside the time. A log that contradicts is refused, with both values: calibrations would
learn its speed for another run.

A run is *linked* where the request names an earlier answer, which says what ran. A *fact* is a
figure that a log states outside of its steps; a *statement* is a line that states one. A *problem*
is a question with all its names resolved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from models.errors import Invalid
from models.spec import catalogue
from models.spec.flops import model_flops
from models.spec.layout import Layout
from models.spec.problem import Problem
from service.formats import logs
from service.formats.logs.contents import LogContents
from service.formats.logs.devices import PrintedDevice
from service.formats.logs.stated_facts import Fact, Statement
from service.formats.megatron import arguments as megatron_arguments
from service.resolve.answered_layout import AnsweredLayout
from service.resolve.model_values import model_values
from service.resolve.resolution import ResolvedQuestion

_PRINTED_BY: dict[str, set[str]] = {
    "megatron": {"megatron", "megatron-deepspeed", "aa-scaling", "deepseek", "generic"},
    "nemo": {"megatron", "generic"},
    "torchtitan": {"torchtitan", "generic"},
    "maxtext": {"maxtext", "generic"},
    "ms-swift": {"fsdp", "deepspeed", "megatron", "generic"},
    "deepspeed": {"deepspeed", "megatron-deepspeed", "fsdp", "generic"},
    "huggingface": {"fsdp", "deepspeed", "generic"},
}
"""The stacks whose runs print each kind of log."""
_OPEN_FIELDS = {"cluster": "cluster.num_chips"}
"""By part of a request that is required: the field in it that may be left open to the log."""
_COMPARED_FIELDS = {
    "pp", "tp", "cp", "ep", "etp", "micro_batch", "virtual_stages", "schedule", "recompute",
    "sequence_parallel", "seq_len", "global_batch", "precision", "optimizer",
}  # fmt: skip
"""Fields of layout and workload that are compared. Of the model all that `model_values` has is
compared."""
_MAX_ROUNDING = 0.05  # of tokens that are worked out from rounded rates and times
_SAME_MODEL = 0.005
"""By how much two counts of one model's parameters differ: vocabularies are padded, and buffers are
counted or not. Llama-3.1-8B and Qwen3-8B differ by four times as much."""
_SAME_SHARDS = 0.02  # sums over ranks also have the norms that tensor parallelism replicates
_OTHER_FLOPS = 2.0
"""By what factor FLOPs may differ from ours. Conventions differ by up to 1.6: whether attention
counts all keys, whether the embedding, recompute and the padding of the vocabulary count."""
_FIELDS: dict[Fact, str] = {
    "parameters": "model",
    "sharded_parameters": "model",
    "trainable_parameters": "model",
    "adapter_parameters": "workload.lora",
    "num_layers": "model.num_layers",
    "seq_len": "workload.seq_len",
    "global_batch": "workload.global_batch",
    "step_tokens": "workload.global_batch",
    "num_devices": "cluster.num_chips",
    "data_parallel": "cluster.num_chips",
    "tp": "layout.tp",
    "pp": "layout.pp",
    "cp": "layout.cp",
    "micro_batch": "layout.micro_batch",
    "zero_stage": "layout.zero_stage",
}
"""The field of a request that says each fact."""


def require_same_run(
    contents: LogContents, subject: AnsweredLayout, resolved: ResolvedQuestion, *, linked: bool
) -> None:
    """Compares a log with the run that the request describes or is linked to: framework, chip,
    arguments, batch, tokens and the facts that the log states. Raises Invalid at the first
    contradiction. `linked` says that the request names an earlier answer."""
    problem = resolved.problem
    if contents.framework is not None:
        _require_framework(problem, contents.framework)
    _require_chip(problem, contents.devices, linked=linked)
    if contents.arguments:
        _require_agreement(problem, subject, contents.arguments, linked=linked)
    if contents.reading is not None:
        _require_batch(subject, contents.reading.global_batch)
        _require_tokens(problem, contents.reading.device_tokens)
    layout = subject.layout.with_stack_defaults(problem).build()
    _require_stated_facts(contents.statements, resolved, layout, linked=linked)
    if contents.reading is not None:
        _require_flops(resolved, contents.reading)


def _require_stated_facts(
    statements: Sequence[Statement], resolved: ResolvedQuestion, layout: Layout, *, linked: bool
) -> None:
    """Raises Invalid if, for some fact, no statement of the log agrees with the request. One that
    agrees is enough, because a log may have several runs, and a model several towers."""
    by_fact: dict[Fact, list[Statement]] = {}
    for statement in statements:
        by_fact.setdefault(statement.fact, []).append(statement)
    known_facts = _KnownFacts(resolved, layout)
    for fact, statements_of_fact in by_fact.items():
        if not any(known_facts.allows(statement) for statement in statements_of_fact):
            first = statements_of_fact[0]
            field = known_facts.contradicted_field(first)
            where = "what it is linked to" if linked else "the request"
            remedy = (
                f"report it with its own {field.partition('.')[0]}"
                if linked
                else f"give in {field} what ran, or send the log of this run"
            )
            rule = (
                f"line {first.line} says {first.text!r} where {where} has"
                f" {known_facts.value_words(fact)}: {remedy}"
            )
            raise Invalid("log", _integer_if_whole(first.value), rule)


@dataclass(frozen=True, slots=True)
class _KnownFacts:
    """Compares the facts that a log states with what the request says of the run."""

    resolved: ResolvedQuestion
    layout: Layout

    def allows(self, statement: Statement) -> bool:
        """Returns whether a statement of the log may be true of this run."""
        fact, value = statement.fact, statement.value
        if fact == "parameters":
            return self._is_the_model(value, statement.rounding)
        if fact == "sharded_parameters":
            return self._is_the_model_in_shards(value)
        if fact == "trainable_parameters":
            return self._are_trained(value)
        if fact == "adapter_parameters":
            return self.resolved.problem.workload.lora is not None
        if fact == "step_tokens":  # frameworks may not count the padding of sequences
            return value <= self.resolved.problem.workload.tokens
        return value in self._allowed_values(fact)

    def contradicted_field(self, statement: Statement) -> str:
        """Returns the field of the request that a statement contradicts. If far fewer parameters
        are trained than the model has, they are adapters, and the field is `workload.lora`."""
        if statement.fact == "trainable_parameters":
            adapters = self.resolved.problem.workload.lora is not None
            if adapters or statement.value < min(self._parameter_totals()) / 2:
                return "workload.lora"
        return _FIELDS[statement.fact]

    def value_words(self, fact: Fact) -> str:
        """Returns what the request says of a fact, in words such as "layout.tp = 8"."""
        if fact == "adapter_parameters":  # which only a run without adapters contradicts
            return "no workload.lora, and so trains all parameters"
        if fact == "step_tokens":
            return f"{self.resolved.problem.workload.tokens:,.0f} tokens a step"
        if fact in ("parameters", "sharded_parameters", "trainable_parameters"):
            architecture = self.resolved.problem.architecture
            return f"{architecture.name} with {architecture.parameters.total:,} parameters"
        # The smallest is the figure of the request; others also count devices of a chip or MTP.
        value = min(self._allowed_values(fact))
        if fact == "data_parallel":
            return f"{value:,} data-parallel ranks"
        return f"{_FIELDS[fact]} = {value:,}"

    def _allowed_values(self, fact: Fact) -> set[int]:
        """Returns the values that a statement of this fact may have. There are several values where
        frameworks count differently: devices or chips, layers with or without those of
        multi-token prediction, data-parallel ranks with or without context parallelism."""
        problem, layout = self.resolved.problem, self.layout
        devices = problem.cluster.num_devices
        layers = problem.architecture.num_layers
        values: dict[Fact, set[int]] = {
            "num_layers": {layers, layers + problem.architecture.mtp_layers},
            "seq_len": {problem.workload.seq_len},
            "global_batch": {problem.workload.global_batch},
            "num_devices": {devices, problem.cluster.num_chips},
            "data_parallel": {
                devices // (layout.tp * layout.pp),
                devices // (layout.tp * layout.pp * layout.cp),
            },
            "tp": {layout.tp},
            "pp": {layout.pp},
            "cp": {layout.cp},
            "micro_batch": {layout.micro_batch},
            "zero_stage": {layout.zero_stage},
        }
        return values[fact]

    @property
    def _has_other_towers(self) -> bool:
        """Returns whether the model that ran has parts that the request's does not, such as a
        vision tower of which only the text tower is described."""
        return self.resolved.used.architecture.text_tower

    def _parameter_totals(self) -> list[int]:
        """Returns counts of all parameters of the model: with and without its encoder, and with and
        without its multi-token prediction, because frameworks differ in that."""
        count = self.resolved.problem.architecture.parameters
        return [
            count.total + mtp + encoder for mtp in {0, count.mtp} for encoder in {0, count.encoder}
        ]

    def _is_the_model(self, value: float, rounding: float) -> bool:
        """Returns whether a count of parameters may be of this model. `rounding` is the most by
        which rounded digits may change it. A model with a tower that is not described, such as
        one for images, may have any larger count."""
        if self._has_other_towers and value > min(self._parameter_totals()):
            return True
        return any(
            abs(value - total) <= _SAME_MODEL * total + rounding
            for total in self._parameter_totals()
        )

    def _is_the_model_in_shards(self, value: float) -> bool:
        """Returns whether parameters summed over shards may be of this model. With experts any sum
        is possible, because a rank counts only its own experts, and so it is where the model has a
        tower that is not described. The last pipeline stage may count a tied embedding again."""
        architecture = self.resolved.problem.architecture
        if architecture.is_moe or self._has_other_towers:
            return True
        low = min(self._parameter_totals())
        high = max(self._parameter_totals())
        if architecture.tie_word_embeddings and self.layout.pp > 1:
            high += architecture.vocab_size * architecture.hidden_size
        return low * (1 - _SAME_SHARDS) <= value <= high * (1 + _SAME_SHARDS)

    def _are_trained(self, value: float) -> bool:
        """Returns whether a count of trainable parameters in a log may be of this run. The Trainer
        of Transformers counts one rank's shard where FSDP1 has sharded the model, and leaves out
        frozen parts."""
        problem = self.resolved.problem
        total = min(self._parameter_totals())
        if problem.workload.trained is not None:  # a part of the model, of unknown size
            return value <= total
        if problem.workload.lora is not None:  # adapters are far smaller than the model
            return value < total / 2
        # A shard of FSDP1 is an equal share of all parameters.
        ranks = problem.cluster.num_devices
        if abs(value * ranks / total - 1) <= _SAME_SHARDS:
            return True
        # A frozen encoder may be left out.
        has_encoder = problem.architecture.encoder is not None or self._has_other_towers
        # 0.0: the count is taken to be exact, not rounded.
        return (has_encoder and value > total / 2) or self._is_the_model(value, 0.0)


def _integer_if_whole(value: float) -> int | float:
    return int(value) if value.is_integer() else value


def _require_flops(resolved: ResolvedQuestion, reading: logs.Reading) -> None:
    """Raises Invalid if the FLOPs that the log prints for a token are those of another model. FLOPs
    of adapters, frozen layers, references and encoders are counted in too many ways to compare."""
    problem = resolved.problem
    workload = problem.workload
    if (
        reading.flops_per_token is None
        or workload.lora
        or workload.trained
        or workload.reference
        or problem.architecture.encoder
        or resolved.used.architecture.text_tower
    ):
        return
    tokens = problem.workload.tokens
    # Frameworks count attention in different ways: the fewest FLOPs have none, the most have that
    # over all keys, without a causal mask.
    fewest, most = (
        model_flops(problem.architecture, problem.workload, count) / tokens
        for count in ("none", "full")
    )
    printed = reading.flops_per_token
    if fewest / _OTHER_FLOPS <= printed <= most * _OTHER_FLOPS:
        return
    rule = (
        f"counts {printed:.3g} FLOPs for a token in its lines, and {problem.architecture.name} with"
        f" workload.seq_len = {problem.workload.seq_len} takes {fewest:.3g} to {most:.3g}: give in"
        " model what ran, or send the log of this run"
    )
    raise Invalid("log", float(f"{printed:.3g}"), rule)  # rounded as in the sentence


def _require_agreement(
    problem: Problem, subject: AnsweredLayout, arguments: Mapping[str, str], *, linked: bool
) -> None:
    """Raises Invalid if an argument that the log prints contradicts the request, or the answer that
    it is linked to. The error says how to make them agree."""
    for part, name, logged_value, answered in _compared_values(problem, subject, arguments):
        if logged_value == answered:
            continue
        if linked:
            where = "what it is linked to"
            remedy = f"report it with its own {part}"
        else:
            where = "the request"
            remedy = f"leave {_OPEN_FIELDS.get(part, part)} to the log"
        rule = f"ran {name} = {logged_value} where {where} has {answered}: {remedy}"
        raise Invalid("log", logged_value, rule)


def _compared_values(
    problem: Problem, subject: AnsweredLayout, arguments: Mapping[str, str]
) -> Iterator[tuple[str, str, object, object]]:
    """Yields (part, name, value in the log, value in the request or its answer) for each value that
    both have, such as ("layout", "tp", 8, 4)."""
    logged = megatron_arguments.stated_values(arguments)
    model = model_values(problem.architecture)
    # `model_values` has the fields of `moe` beside those of the model.
    logged_model = {**logged["model"], **logged["model"].get("moe", {})}
    yield from (
        ("model", name, logged_model[name], value)
        for name, value in model.items()
        if name in logged_model
    )
    layout = subject.layout.with_stack_defaults(problem).build()
    for part, fields in (("layout", layout), ("workload", subject.question.workload)):
        for name, logged_value in logged[part].items():
            if name in _COMPARED_FIELDS:
                yield part, name, logged_value, getattr(fields, name)
    degrees = logged["layout"]
    # A layout with a ZeRO stage was read as a whole, and so has all degrees.
    if "zero_stage" in degrees:
        ranks = degrees["dp_shard"] * degrees["dp_replicate"]
        # On a single data-parallel rank there is nothing to shard, and the stage means nothing.
        if ranks > 1:
            yield "layout", "zero_stage", degrees["zero_stage"], layout.zero_stage
        devices = ranks * degrees["tp"] * degrees["pp"] * degrees["cp"]
        yield "cluster", "chips", devices, problem.cluster.num_devices


def _require_chip(problem: Problem, devices: Sequence[PrintedDevice], *, linked: bool) -> None:
    """Raises Invalid if the log names accelerators, and none of them is the cluster's chip. A chip
    that the request describes itself may print any name."""
    shipped = {chip.id: chip for chip in catalogue.chips().values()}
    chip = problem.cluster.chip.id
    if chip not in shipped or not devices:
        return
    matching_ids = [{match.id for match in device.matching(shipped.values())} for device in devices]
    if any(chip in ids for ids in matching_ids):
        return
    where = "what it is linked to" if linked else "the request"
    hint = f" ({' or '.join(sorted(matching_ids[0]))})" if matching_ids[0] else ""
    rule = (
        f"ran on {devices[0].name} where {where} has cluster.chip = {chip}: name the chip that the"
        f" run had{hint}"
    )
    raise Invalid("log", devices[0].name, rule)


def _require_framework(problem: Problem, framework: str) -> None:
    """Raises Invalid if the stack of the run cannot have printed a log of this framework. A stack
    that the user described counts as the shipped stack that it names as `calibrated_as`."""
    if problem.stack.calibrated_as not in _PRINTED_BY[framework]:
        rule = f"is of {framework}, and the run that it should be of has stack {problem.stack.id}"
        raise Invalid("log", framework, rule)


def _require_batch(subject: AnsweredLayout, global_batch: int | None) -> None:
    """Raises Invalid if the log's steps have another number of sequences than the request. None
    means that the log does not say it."""
    requested = subject.question.workload.global_batch
    if global_batch not in (None, requested):
        rule = (
            f"has steps of {global_batch} sequences, and the run that it should be of has"
            f" global_batch = {requested}: give in workload.global_batch what ran"
        )
        raise Invalid("log", global_batch, rule)


def _require_tokens(problem: Problem, device_tokens: float | None) -> None:
    """Raises Invalid if the log's steps have another number of tokens a device than the request.
    `device_tokens` is their time multiplied by their rate. The error names the number of devices
    that would fit, if that is a whole one."""
    devices, tokens = problem.cluster.num_devices, problem.workload.tokens
    expected = tokens / devices
    if device_tokens is None or abs(device_tokens / expected - 1) <= _MAX_ROUNDING:
        return
    implied_devices = round(tokens / device_tokens)
    is_whole = (
        implied_devices > 0 and abs(tokens / device_tokens / implied_devices - 1) <= _MAX_ROUNDING
    )
    hint = f" (those of {implied_devices} devices, not {devices})" if is_whole else ""
    rule = (
        f"has steps of {device_tokens:.0f} tokens a device by their time and rate{hint}, and"
        f" the run that it should be of has {expected:.0f}: check cluster.num_chips,"
        " workload.global_batch and workload.seq_len"
    )
    raise Invalid("log", round(device_tokens), rule)
