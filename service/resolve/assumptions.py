"""Says in words what a request left open and the service settled, and where the models know less
than it may seem.

A *switch* is a setting of the framework that decides a field of the stack; answers list switches
apart. A *knob* is a field of a layout. A *leaf* is a network switch that nodes are plugged into.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import fields

from models.advice.allocation import Allocation, Node
from models.cost.compute import OLDEST_YEARS
from models.spec.hardware import Chip, Torus
from models.spec.identity import cached_by_identity
from models.spec.layout import Layout
from models.spec.prices import list_prices
from models.spec.problem import Problem
from models.spec.profile import Profile
from models.spec.stack import Stack
from models.spec.switches import switches_of
from service.formats import huggingface
from service.own_profile import is_own
from service.resolve.resolution import ResolvedQuestion
from service.schemas.architecture import HuggingFaceConfig, ShapeFields
from service.schemas.layout import LayoutFields
from service.schemas.prediction import PredictedLayout
from service.schemas.question import Question
from service.schemas.run_subject import RunSubject
from service.schemas.stack import StackForm
from service.schemas.workload import WorkloadFields

_DATA_SHEET_MEMORY = {"aws"}
"""Vendors of whose runtime it is not known what it leaves of the memory."""

_SOLD_IN_PARTS = {
    "mi250x-gcd": "a GCD, half of an MI250X",
    "pvc-tile-64gb": "a tile, half of a Max 1550",
    "ascend-910c": "a die, half of a 910C: npu-smi lists a package as two devices of 64 GB",
    "vr200-nvl72": "a package of two dies, of which a rack has 72",
}
"""The device that num_chips counts, for chips whose vendor sells another unit as one."""

_CACHED_GENERATIONS = 64  # of chips, with a profile
_NOTICEABLE_S = 0.01  # of a step: a shorter wait for a slow node is not worth a line

_NOTHING_OPEN = (
    "token_budget", "global_batch_tokens", "packing", "master_weights", "lora", "trained",
    "reference", "head", "moment_rank",
)  # fmt: skip
"""Fields of a workload whose absence leaves nothing open."""

_EXPERT_FIELDS = ("load_balancing", "routing")
"""Fields of a workload that only a model with experts reads."""

_IDLE_KNOBS = {
    "sequence_parallel": "with tp 1 it shards nothing",
    "recompute_layers": "a chunk has no more layers than were given, and 0 is all of them",
}
"""Why a knob that the request gives does not keep its value (models.layouts.defaults)."""

_HEAD_FIELDS = ("num_key_value_heads", "head_dim")
"""Fields of a shape that multi-head latent attention (MLA) does not read."""


def assumptions(question: Question, resolved: ResolvedQuestion, profile: Profile) -> list[str]:
    """Returns the assumptions that any answer to a question makes, one sentence each."""
    problem = resolved.problem
    return [
        *_own_version_assumptions(profile),
        *_workload_defaults_assumptions(question.workload),
        *_unused_workload_fields(question.workload, problem),
        *_unused_shape_fields(question.model, problem),
        *_software_age_assumptions(problem, profile),
        *_text_tower_assumptions(question, resolved),
        *_images_assumptions(problem),
        *_quantized_weights_assumptions(resolved),
        *_attention_residuals_assumptions(problem),
        *_tf32_assumptions(problem),
        *_torus_assumptions(resolved),
        *_scale_up_domain_assumptions(question, problem),
        *_unused_cluster_fields(question, problem),
        *_links_assumptions(problem),
        *_price_assumptions(resolved),
        *_slow_node_assumptions(problem, profile),
        *chip_assumptions(problem.cluster.chip, profile),
        *_shipped_chip_assumptions(resolved),
        _attention_kernel(resolved),
        *_overlap_assumptions(problem),
        *_expert_loop_assumptions(problem),
        *_gradient_format_assumptions(resolved),
    ]


def _own_version_assumptions(profile: Profile) -> Iterator[str]:
    """Yields a sentence if the profile is a version that a tenant's own reports made."""
    if is_own(profile.id):
        yield f"predicted with a version of the tenant's own, for nobody else: {profile.made_by}"


def chip_assumptions(chip: Chip, profile: Profile) -> Iterator[str]:
    """Yields the assumptions about a chip, for any question and when it is registered."""
    if chip.is_data_sheet_only:
        yield (
            f"figures of {chip.id} are data sheet only: it is announced, and nothing has been"
            " measured on it"
        )
    if not _is_calibrated(profile, chip.generation):
        yield f"generation {chip.generation!r} is uncalibrated: coefficients of the generic family"


@cached_by_identity(_CACHED_GENERATIONS)
def _is_calibrated(profile: Profile, generation: str) -> bool:
    """Returns whether the profile has a coefficient of its own for this generation of chips: one
    with runs behind it, or whose mean is not 0, which is the value for all generations."""
    terms = [term for term in profile.terms if term.scope == f"generation:{generation}"]
    return any(term.runs or term.mean for term in terms)


def layout_assumptions(
    name: str, given: LayoutFields, completed: LayoutFields, problem: Problem
) -> Iterator[str]:
    """Yields sentences on the knobs that the stack settled, and on knobs whose default differs from
    that of launchers. `name` is the field of the request with the layout, `given` the layout as it
    was sent, and `completed` the one with the stack's values."""
    before, after = given.build(), completed.build()
    for knob in (field.name for field in fields(Layout)):
        if getattr(before, knob) != getattr(after, knob):
            idle = _IDLE_KNOBS.get(knob) if knob in given.knobs_given else None
            why = idle or "the stack's own"
            yield f"{name}.{knob} is {getattr(completed, knob)}: {why}"
    if completed.pp > 1 and "balanced" not in given.knobs_given and not completed.balanced:
        yield (
            f"{name}.balanced is False: as many layers on every stage, as the stack has it where"
            " they divide"
        )
    has_etp = problem.architecture.is_moe and problem.stack.expert_tensor_parallel
    if has_etp and "etp" not in given.knobs_given and completed.tp > completed.etp == 1:
        like = f"Megatron-LM, told nothing, cuts them like the rest (etp = {completed.tp})"
        yield f"{name}.etp is 1, experts are whole: {like}"


def empty_chunk_assumptions(name: str, prediction: PredictedLayout) -> Iterator[str]:
    """Yields a sentence if the split of layers leaves a chunk of a pipeline stage without any,
    because launchers have to be told of such a split. `name` is the field with the layout."""
    if 0 in prediction.layers_per_chunk:
        yield (
            f"{name} has a chunk without layers (layers_per_chunk): a launcher that does not split"
            " so by itself is told (Megatron-Core: pipeline_model_parallel_layout)"
        )


def software_date_assumptions(report: RunSubject, completed: StackForm) -> Iterator[str]:
    """Yields a sentence on the age of a run's software, if only the date of the run tells it.
    `completed` is the stack with that age. A run linked to an answer has the answer's software."""
    # The stack is completed only where the report says nothing of the age of its software. Where it
    # is a name, as in most reports, it has no age.
    if report.is_linked or completed == report.stack or isinstance(completed, str):
        return
    yield (
        f"stack.age_years is {completed.age_years:g}: the software is as old as measured_at,"
        f" {report.measured_at:%Y-%m}"
    )


def leaf_switch_assumptions(allocation: Allocation, nodes: Iterable[Node]) -> Iterator[str]:
    """Yields a sentence if the leaf switches that `nodes` name join another number of chips than
    the innermost network level of the cluster. Step time is predicted with that level, and the
    named leaves only decide the order of ranks."""
    cluster = allocation.cluster
    leaf_of_node = {node.name: node.leaf for node in nodes}
    chips_per_leaf = Counter[str]()
    for host in allocation.hosts:
        chips_per_leaf[leaf_of_node[host.node]] += host.chips
    leaf_level = next((dim for dim in cluster.dims if dim.scale == "out"), None)
    has_named_leaf = any(chips_per_leaf)  # the keys are names: "" where a node names no leaf
    if leaf_level is None or not has_named_leaf:
        return
    priced = leaf_level.domain // cluster.chip.devices_per_chip
    least = min(chips_per_leaf.values())
    most = max(chips_per_leaf.values())
    if least == most == priced:
        return
    held = f"{least} to {most}" if least < most else f"{most}"
    yield (
        f"leaves order ranks only: they hold {held} of the chips in use, and traffic is priced"
        f" as if {leaf_level.name} joined {priced} chips everywhere"
    )


def _workload_defaults_assumptions(workload: WorkloadFields) -> Iterator[str]:
    """Yields a sentence on each field of the workload, or of its LoRA, that the request leaves at
    its default."""
    for name in WorkloadFields.model_fields:
        if name not in workload.model_fields_set and name not in _NOTHING_OPEN:
            yield f"workload.{name} is {getattr(workload, name)}"
    if lora := workload.lora:
        for name in type(lora).model_fields:
            if name not in lora.model_fields_set:
                yield f"workload.lora.{name} is {_listed(getattr(lora, name))}"
    if workload.trained and workload.trained.layers is None:
        yield "workload.trained.layers is all layers; [] trains none of them"


def _listed(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _unused_workload_fields(workload: WorkloadFields, problem: Problem) -> Iterator[str]:
    """Yields sentences on fields of the workload that the request sets without effect."""
    if not problem.architecture.is_moe:
        for name in _EXPERT_FIELDS:
            if name in workload.model_fields_set:
                yield f"workload.{name} has no effect: the model has no experts"
    if workload.token_budget is not None:
        yield "workload.token_budget has no effect on the prediction of a step"


def _unused_shape_fields(model: object, problem: Problem) -> Iterator[str]:
    """Yields sentences on fields of an explicit model that have no effect, because other fields
    replace them."""
    if not isinstance(model, ShapeFields):
        return
    if model.mla:
        for name in _HEAD_FIELDS:
            if name in model.model_fields_set:
                yield f"model.{name} has no effect: model.mla says what heads are"
    # This field is required, so a request has it even where no layer does.
    if not any(layer.dense for layer in problem.architecture.kinds):
        yield "model.intermediate_size has no effect: every layer is sparse"


def _software_age_assumptions(problem: Problem, profile: Profile) -> Iterator[str]:
    """Yields sentences on the age of the software, which is the newest that the profile knows
    unless the request gives one. Kernels count as no newer than in published runs on such chips."""
    age = problem.stack.age_years
    if not age:
        newest = _month(profile.software_year)
        yield (
            f"the software is as new as the newest that the profile knows, of {newest}; age_years"
            " or version makes it older"
        )
    if age > OLDEST_YEARS:
        yield (
            f"stack.age_years = {age:g} counts as {OLDEST_YEARS:g}: older software came with other"
            " chips"
        )
    kernel_age = profile.kernel_age(problem.scopes)
    if kernel_age > age:
        known = _month(profile.software_year - kernel_age)
        generation = problem.cluster.chip.generation
        yield (
            f"kernels are as fast as those of {known}: no published run on {generation} chips has"
            " newer ones"
        )


def _month(year: float) -> str:
    """Returns a year with a fraction as a month: 2025.5 is "2025-07"."""
    whole, fraction = divmod(year, 1)
    return f"{int(whole)}-{int(fraction * 12) + 1:02d}"


def _slow_node_assumptions(problem: Problem, profile: Profile) -> Iterator[str]:
    """Yields a sentence on the wait for a node in trouble, if the job uses every node of the
    cluster: published runs of that kind waited for one."""
    if not problem.cluster.fills_fabric:
        return
    wait_s = float(profile.coefficients(problem.scopes).slow_node_s)
    if wait_s >= _NOTICEABLE_S:
        yield (
            f"in jobs that leave out no node of {problem.cluster.fabric.id} every send and receipt"
            f" of a stage takes {wait_s:.2g} s longer, for a node in trouble, as in published runs"
            " on all of it (in jitter_s)"
        )


def _text_tower_assumptions(question: Question, resolved: ResolvedQuestion) -> Iterator[str]:
    """Yields a sentence if only the language model of a multimodal model counts. It says how the
    request can add the encoder of images."""
    used = resolved.used.architecture
    if not used.text_tower:
        return
    form = question.model
    if not isinstance(form, HuggingFaceConfig):
        cure = "its config.json, with an encoder beside it, brings in that of images"
    elif huggingface.reads_tower(form.root):
        cure = "model.encoder.tokens_per_sequence brings in the encoder of images"
    else:
        cure = "the encoder of this family is not read; a model in explicit fields may have one"
    yield f"of {used.name} only the text tower counts: vision parameters are left out ({cure})"


def _images_assumptions(problem: Problem) -> Iterator[str]:
    """Yields a sentence on which parts of the encoder of images are trained, and on the patches
    that it works on."""
    encoder = problem.architecture.encoder
    if encoder is None:
        return
    trained = "is trained"
    if not encoder.trained:
        trained = "is frozen, and its projector "
        trained += "is trained" if encoder.projector_trained else "too"
    yield (
        f"the encoder {trained}; it works on {encoder.patches_per_sequence} patches a sequence, in"
        f" images of {encoder.patches_per_image}"
    )


def _quantized_weights_assumptions(resolved: ResolvedQuestion) -> Iterator[str]:
    """Yields a sentence if the model's configuration has quantized weights, because training
    ignores that."""
    if resolved.quantized:
        precision = resolved.problem.workload.precision
        yield (
            "model.quantization_config has no effect: training is in workload.precision ="
            f" {precision}"
        )


def _attention_residuals_assumptions(problem: Problem) -> Iterator[str]:
    """Yields a sentence if the model has attention residuals, whose sums are not in the step
    time."""
    if any(layer.attention_residuals for layer in problem.architecture.kinds):
        yield (
            "of the model's attention residuals only the parameters count: their sums are not"
            " priced"
        )


def _tf32_assumptions(problem: Problem) -> Iterator[str]:
    """Yields a sentence if matrix products run in TF32."""
    workload = problem.workload
    if workload.number_format.gemm == "tf32":
        yield f"matrix products of {workload.precision} run in TF32, where the chip has it"


def _torus_assumptions(resolved: ResolvedQuestion) -> Iterator[str]:
    """Yields sentences on the shape of the torus, which of its dims wrap around, and how slices
    are joined."""
    cluster = resolved.problem.cluster
    # A shape that the caller gave needs no sentence. `request` has it even where the caller gave it
    # by the name of a slice, such as tpu7x-4x4x8.
    if cluster.slice_shape and "torus_shape" not in resolved.request["cluster"]:
        shape = "x".join(map(str, cluster.slice_shape))
        yield f"cluster.torus_shape is {shape}, the most cubic slice"
    if cluster.torus_shape:
        yield from _unnamed_slice(cluster.torus_shape, cluster.fabric.torus)
        dims = cluster.slice_dims
        open_dims = [str(length) for length, wraps in dims if length > 1 and not wraps]
        if open_dims:
            yield (
                f"the ends of the torus' dims of {' and '.join(open_dims)} are not joined: they are"
                " lines"
            )
    if cluster.slice_shape:
        slices = cluster.num_chips // math.prod(cluster.slice_shape)
        if slices > 1:
            yield f"the cluster is {slices} slices, joined by the network"


def _unnamed_slice(shape: tuple[int, ...], torus: Torus | None) -> Iterator[str]:
    """Yields a sentence if the vendor offers no slice of this shape by name."""
    if torus is None or torus.is_slice(shape):
        return
    line = f"cluster.torus_shape = {list(shape)} is no slice that is offered by name"
    chips = math.prod(shape)
    if chips > torus.max_chips:
        line += (
            f": its {chips} chips are taken for one torus, where the largest has {torus.max_chips}"
        )
    yield line


def _scale_up_domain_assumptions(question: Question, problem: Problem) -> Iterator[str]:
    """Yields a sentence on the chips of a scale-up domain, such as an NVLink domain, if the request
    leaves them open or the last domain is not full."""
    cluster = problem.cluster
    if cluster.slice_shape:  # a torus has no domain of switched links
        return
    chips = cluster.scale_up_domain_chips
    remainder = cluster.num_chips % chips if cluster.num_chips > chips else 0
    if remainder or "chips_per_domain" not in question.cluster.model_fields_set:
        last_domain = f"; the last domain holds {remainder}" if remainder else ""
        yield f"cluster.chips_per_domain is {chips}{last_domain}"


def _unused_cluster_fields(question: Question, problem: Problem) -> Iterator[str]:
    """Yields sentences on fields of the network that have no effect, because scale-up links join
    all chips."""
    fields_set = question.cluster.model_fields_set
    cluster = problem.cluster
    if cluster.scale_out_mask.any():  # some links are those of the network
        return
    if "scale_out_gb_s" in fields_set:
        yield "cluster.scale_out_gb_s has no effect: the scale-up links join all chips"
    if "levels" in fields_set and cluster.slice_shape:
        yield "cluster.levels has no effect: one slice of the torus holds all chips"


def _links_assumptions(problem: Problem) -> Iterator[str]:
    """Yields a sentence on each level of links, from the innermost outwards: how many devices it
    joins, and how fast."""
    cluster = problem.cluster
    devices = cluster.chip.devices_per_chip
    if devices > 1:
        yield f"a chip has {devices} devices: degrees multiply to {cluster.num_devices} devices"
    for dim in cluster.dims:
        yield f"{dim.name} joins {dim.domain} devices at {dim.gb_s:g} GB/s each"


def _shipped_chip_assumptions(resolved: ResolvedQuestion) -> Iterator[str]:
    """Yields sentences on what the catalogue does not know of a chip that it ships, and on the unit
    that num_chips counts."""
    if resolved.used.chip.source != "shipped":
        return
    chip = resolved.problem.cluster.chip
    is_memory_given = "usable_memory_gib" in resolved.request["cluster"]
    # Of these vendors' runtimes it is not known how much of the memory they take for themselves.
    if chip.vendor in _DATA_SHEET_MEMORY and not is_memory_given:
        yield f"usable memory is nominal: all {chip.usable_memory_gib:g} GiB of the data sheet"
    if chip.host_memory_gb is None:
        yield f"host memory of {chip.id} is not known: what is offloaded is not held against it"
    if chip.id in _SOLD_IN_PARTS:
        yield f"cluster.num_chips counts {chip.id}: each is {_SOLD_IN_PARTS[chip.id]}"


def _price_assumptions(resolved: ResolvedQuestion) -> Iterator[str]:
    """Yields a sentence on the price of the chip and its source, unless the cluster in the request
    has one."""
    chip = resolved.problem.cluster.chip
    used = resolved.used.chip
    if chip.usd_per_chip_hour is None or "usd_per_chip_hour" in resolved.request["cluster"]:
        return
    sources = {"registered": "its catalogue entry"}
    if used.source == "shipped":
        sources["shipped"] = f"the catalogue ({list_prices(chip.id)[0].words})"
    # Any other chip is described in the request, by a data sheet that has its price.
    source = sources.get(used.source, "the request")
    yield f"a chip of {used.name} costs {chip.usd_per_chip_hour:g} USD an hour, as {source} has it"


def _gradient_format_assumptions(resolved: ResolvedQuestion) -> Iterator[str]:
    """Yields a sentence on the bytes of a gradient and why they are so. There is none where a
    switch of the framework decides it, because switches are listed apart."""
    problem = resolved.problem
    # Some precisions need wider gradients than the stack keeps by itself.
    if problem.gradient_bytes > problem.stack.gradient_bytes:
        reason = f"workload.precision = {problem.workload.precision} has them"
    elif "gradient_bytes" in resolved.used.stack.changes:
        reason = "the request says"
    elif _has_switch(problem.stack, "gradient_bytes"):
        return
    else:
        reason = f"{problem.stack.id} does"
    kept, sent = problem.gradient_bytes, problem.reduce_bytes
    if kept == sent:
        yield f"gradients are kept and reduced in {kept:g} bytes each, as {reason}"
    else:
        yield f"gradients are kept in {kept:g} bytes each and reduced in {sent:g}, as {reason}"


def _overlap_assumptions(problem: Problem) -> Iterator[str]:
    """Yields a sentence on the traffic that the stack overlaps with compute. Axes that a switch of
    the framework decides are left out, because switches are listed apart."""
    stack = problem.stack
    axes = ("data", "tensor", "expert", "pipeline")
    overlapped = [axis for axis in axes if getattr(stack, f"overlap_{axis}")]
    # Some stacks overlap tensor-parallel traffic only in some precisions.
    if stack.overlap_tensor and not problem.overlaps_tensor:
        overlapped.remove("tensor")
    if not overlapped:
        yield f"no traffic runs beside compute: {stack.id} has it so"
        return
    # Axes that no switch names: answers say nothing else of their overlap.
    unnamed = [axis for axis in overlapped if not _has_switch(stack, f"overlap_{axis}")]
    if not unnamed and stack.overlap_zero1:  # the list of switches says all of it
        return
    line = f"{stack.id} hides traffic beside compute"
    if not stack.overlap_zero1:
        line += ", but not what ZeRO 1 moves once a step (stack.overlap_zero1)"
    knobs = ", ".join(f"stack.overlap_{axis}" for axis in unnamed)
    yield f"{line}: {knobs} = false where it is off"


def _expert_loop_assumptions(problem: Problem) -> Iterator[str]:
    """Yields a sentence, for stacks whose experts are modules of Python, on whether all experts of
    a device are multiplied at once or a loop goes through them, which is slow."""
    stack = problem.stack
    if not problem.architecture.is_moe or stack.expert_loop == "kernels":
        return
    cure = (
        'transformers from 5.0 on multiplies for all at once (experts_implementation="grouped_mm")'
    )
    if stack.experts_at_once:
        yield (
            "all experts of a device are multiplied at once, as transformers does from 5.0 on with"
            " PyTorch 2.9: stack.experts_at_once = false where Python goes through them one by one,"
            " as before, which can take several times as long where experts are many"
        )
    # Only ZeRO 3 shards weights, and so has any to gather.
    elif not stack.gathers_experts_apart or 3 not in stack.zero_stages:
        yield f"Python goes through experts one by one: {cure}"
    else:
        yield (
            "Python goes through experts one by one, and ZeRO 3 gathers every matrix of each by"
            " itself: deepspeed.utils.set_z3_leaf_modules has it gather those of a layer at once"
            f' (stack.expert_loop = "modules"), and {cure}'
        )


def _has_switch(stack: Stack, field: str) -> bool:
    """Returns whether the framework has a setting for this field of the stack. Answers list such
    settings apart, as switches."""
    return any(switch.field == field and switch.settings for switch in switches_of(stack))


def _attention_kernel(resolved: ResolvedQuestion) -> str:
    """Returns a sentence on the attention kernel, and whether the request or the stack picked
    it."""
    problem = resolved.problem
    if resolved.used.stack.changes.get("attention_kernel") == problem.attention_kernel:
        reason = "as the request says"
    else:
        reason = f"what {problem.stack.id} picks on {problem.cluster.chip.generation}"
    return f"attention runs on {problem.attention_kernel}, {reason}"
