"""What a request left open and the service settled, and where the models know less than it may
seem."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from models.advice.allocation import Allocation, Node
from models.cost.compute import OLDEST_YEARS
from models.spec.hardware import Chip
from models.spec.problem import Problem
from models.spec.profile import Profile
from service.resolve.resolution import ResolvedQuestion
from service.schemas.architecture import ShapeFields
from service.schemas.layout import LayoutFields
from service.schemas.prediction import PredictedLayout
from service.schemas.question import Question
from service.schemas.report import Ran
from service.schemas.stack import StackForm
from service.schemas.workload import WorkloadFields

_DATA_SHEET_MEMORY = {"google", "aws"}
"""Vendors who do not publish what their runtime leaves of the memory."""

_PARTS = {"mi250x-gcd": "a GCD, half of an MI250X", "pvc-tile-64gb": "a tile, half of a Max 1550"}
"""What num_chips counts where it is not what the vendor sells as one."""

_WORTH_SAYING_S = 0.01

_FOR_EXPERTS = ("load_balancing", "routing")
_NOT_LATENT = ("num_key_value_heads", "head_dim")


def assumptions(question: Question, resolved: ResolvedQuestion, profile: Profile) -> list[str]:
    problem = resolved.problem
    shipped = resolved.used.chip.source == "shipped"
    return [
        *_defaults(question.workload),
        *_without_effect(question.workload, problem),
        *_of_the_shape(question.model, problem),
        *_software(problem, profile),
        *_text_tower(resolved),
        *_quantized(resolved),
        *_number_format(problem),
        *_of_the_cluster(question, resolved),
        *_price(resolved),
        *_slow_node(problem, profile),
        *chip_assumptions(problem.cluster.chip, profile),
        *(_of_a_shipped_chip(problem.cluster.chip) if shipped else ()),
        _kernel(resolved),
        _overlap(problem),
        _gradients(resolved),
    ]


def chip_assumptions(chip: Chip, profile: Profile) -> list[str]:
    """Also said when a chip is registered."""
    if any(term.scope == f"generation:{chip.generation}" for term in profile.terms):
        return []
    return [f"generation {chip.generation!r} is uncalibrated: coefficients of the generic family"]


def layout_assumptions(
    name: str, given: LayoutFields, settled: LayoutFields, problem: Problem
) -> list[str]:
    """Knobs that the stack settled, and one whose default is another in launchers."""
    changed = [
        knob for knob in LayoutFields.model_fields if getattr(given, knob) != getattr(settled, knob)
    ]
    lines = [f"{name}.{knob} is {getattr(settled, knob)}: the stack's own" for knob in changed]
    if settled.pp > 1 and "balanced" not in given.model_fields_set and not settled.balanced:
        lines.append(
            f"{name}.balanced is False: as many layers on every stage, as the stack has it where"
            " they divide"
        )
    sparse = problem.architecture.is_moe and problem.stack.expert_tensor_parallel
    if sparse and "etp" not in given.model_fields_set and settled.tp > settled.etp == 1:
        like = f"Megatron-LM, told nothing, cuts them like the rest (etp = {settled.tp})"
        lines.append(f"{name}.etp is 1, experts are whole: {like}")
    return lines


def empty_chunk_assumptions(name: str, found: PredictedLayout) -> list[str]:
    """Of a split that leaves some without a layer."""
    if 0 not in found.layers_per_chunk:
        return []
    told = (
        "a launcher that does not split so by itself is told (Megatron-Core:"
        " pipeline_model_parallel_layout)"
    )
    return [f"{name} has a chunk without layers (layers_per_chunk): {told}"]


def software_date_assumptions(report: Ran, settled: StackForm) -> list[str]:
    """How old the software of a run is, where only its date tells."""
    if report.is_linked or settled == report.stack or isinstance(settled, str):
        return []
    return [
        f"stack.age_years is {settled.age_years:g}: the software is as old as measured_at,"
        f" {report.measured_at:%Y-%m}"
    ]


def leaf_switch_assumptions(allocation: Allocation, nodes: Iterable[Node]) -> list[str]:
    """Where switches hold other numbers of chips than the fabric has below one."""
    leaves, cluster = {node.name: node.leaf for node in nodes}, allocation.cluster
    held = Counter[str]()
    for host in allocation.hosts:
        held[leaves[host.node]] += host.chips
    outer = next((dim for dim in cluster.dims if dim.scale == "out"), None)
    if outer is None or not any(held):
        return []
    priced, least, most = (
        outer.domain // cluster.chip.devices_per_chip,
        min(held.values()),
        max(held.values()),
    )
    if least == most == priced:
        return []
    said = f"{least} to {most}" if least < most else f"{most}"
    alike = f"as if {outer.name} joined {priced} chips everywhere"
    return [
        f"leaves order ranks only: they hold {said} of the chips in use, and traffic is priced"
        f" {alike}"
    ]


def _defaults(workload: WorkloadFields) -> list[str]:
    open_ = [name for name in WorkloadFields.model_fields if name not in workload.model_fields_set]
    return [
        f"workload.{name} is {getattr(workload, name)}" for name in open_ if name != "token_budget"
    ]


def _without_effect(workload: WorkloadFields, problem: Problem) -> list[str]:
    given = workload.model_fields_set
    dense = () if problem.architecture.is_moe else [name for name in _FOR_EXPERTS if name in given]
    lines = [f"workload.{name} has no effect: the model has no experts" for name in dense]
    if workload.token_budget is not None:
        lines.append("workload.token_budget has no effect on the prediction of a step")
    return lines


def _of_the_shape(model: object, problem: Problem) -> list[str]:
    """Fields of an explicit shape that others take the place of."""
    if not isinstance(model, ShapeFields):
        return []
    latent = [name for name in _NOT_LATENT if model.mla and name in model.model_fields_set]
    lines = [f"model.{name} has no effect: model.mla says what heads are" for name in latent]
    if not any(layer.dense for layer in problem.architecture.kinds):
        lines.append("model.intermediate_size has no effect: every layer is sparse")
    return lines


def _software(problem: Problem, profile: Profile) -> list[str]:
    """Predictions are of the newest software unless told otherwise: extrapolated where runs are
    older."""
    age, generation = problem.stack.age_years, problem.cluster.chip.generation
    lines = []
    if not age:
        newest = _month(profile.software_year)
        lines.append(
            f"the software is as new as the newest that the profile knows, of {newest}; age_years"
            " makes it older"
        )
    if age > OLDEST_YEARS:
        lines.append(
            f"stack.age_years = {age:g} counts as {OLDEST_YEARS:g}: older software came with other"
            " chips"
        )
    if (kernels := profile.kernel_age(problem.scopes)) > age:
        known = _month(profile.software_year - kernels)
        lines.append(
            f"kernels are as fast as those of {known}: no published run on {generation} chips has"
            " newer ones"
        )
    return lines


def _month(year: float) -> str:
    whole, part = divmod(year, 1)
    return f"{int(whole)}-{int(part * 12) + 1:02d}"


def _slow_node(problem: Problem, profile: Profile) -> list[str]:
    """Of a cluster whose published runs on all of it waited."""
    if not problem.cluster.fills_fabric:
        return []
    slow = float(profile.coefficients(problem.scopes).slow_node_s)
    if slow < _WORTH_SAYING_S:
        return []
    of_it = (
        f"in jobs that leave out no node of {problem.cluster.fabric.id} every send and receipt of a"
        " stage takes"
    )
    return [
        f"{of_it} {slow:.2g} s longer, for a node in trouble, as in published runs on all of it (in"
        " jitter_s)"
    ]


def _text_tower(resolved: ResolvedQuestion) -> list[str]:
    used = resolved.used.architecture
    return (
        [f"of {used.name} only the text tower counts: vision parameters are left out"]
        if used.text_tower
        else []
    )


def _quantized(resolved: ResolvedQuestion) -> list[str]:
    if not resolved.quantized:
        return []
    precision = resolved.problem.workload.precision
    return [
        f"model.quantization_config has no effect: training is in workload.precision = {precision}"
    ]


def _of_the_cluster(question: Question, resolved: ResolvedQuestion) -> list[str]:
    cluster = resolved.problem.cluster
    said = question.cluster.model_fields_set
    lines = []
    if (
        cluster.slice_shape and "torus_shape" not in resolved.request["cluster"]
    ):  # which a name may say too
        lines.append(
            f"cluster.torus_shape is {'x'.join(map(str, cluster.slice_shape))}, the most cubic"
            " slice"
        )
    torus = cluster.fabric.torus
    if torus and cluster.torus_shape and not torus.is_slice(cluster.torus_shape):
        line = (
            f"cluster.torus_shape = {list(cluster.torus_shape)} is no slice that is offered by name"
        )
        if (chips := math.prod(cluster.torus_shape)) > torus.max_chips:
            line += (
                f": its {chips} chips are taken for one torus, where the largest has"
                f" {torus.max_chips}"
            )
        lines.append(line)
    open_ = [str(length) for length, wraps in cluster.wraps if length > 1 and not wraps]
    if cluster.torus_shape and open_:
        lines.append(
            f"the ends of the torus' dims of {' and '.join(open_)} are not joined: they are lines"
        )
    if cluster.slice_shape and (slices := cluster.num_chips // math.prod(cluster.slice_shape)) > 1:
        lines.append(f"the cluster is {slices} slices, joined by the network")
    if not cluster.slice_shape:
        chips = cluster.scale_up_domain_chips
        rest = cluster.num_chips % chips if cluster.num_chips > chips else 0
        if rest or "chips_per_domain" not in said:
            partly = f"; the last domain holds {rest}" if rest else ""
            lines.append(f"cluster.chips_per_domain is {chips}{partly}")
    joined = not cluster.scale_out_mask.any()
    if "scale_out_gb_s" in said and joined:
        lines.append("cluster.scale_out_gb_s has no effect: the scale-up links join all chips")
    if "levels" in said and cluster.slice_shape and joined:
        lines.append("cluster.levels has no effect: one slice of the torus holds all chips")
    if (devices := cluster.chip.devices_per_chip) > 1:
        lines.append(
            f"a chip has {devices} devices: degrees multiply to {cluster.num_devices} devices"
        )
    lines += [
        f"{dim.name} joins {dim.domain} devices at {dim.gb_s:g} GB/s each" for dim in cluster.dims
    ]
    return lines


def _of_a_shipped_chip(chip: Chip) -> list[str]:
    lines = []
    if chip.vendor in _DATA_SHEET_MEMORY:
        lines.append(
            f"usable memory is nominal: all {chip.usable_memory_gib:g} GiB of the data sheet"
        )
    if chip.host_memory_gb is None:
        lines.append(
            f"host memory of {chip.id} is not known: what is offloaded is not held against it"
        )
    if chip.id in _PARTS:
        lines.append(f"cluster.num_chips counts {chip.id}: each is {_PARTS[chip.id]}")
    return lines


def _number_format(problem: Problem) -> list[str]:
    workload = problem.workload
    is_tf32 = workload.number_format.gemm == "tf32"
    return (
        [f"matrix products of {workload.precision} run in TF32, where the chip has it"]
        if is_tf32
        else []
    )


def _price(resolved: ResolvedQuestion) -> list[str]:
    """Of the chip, where neither cluster nor objective name another."""
    chip, used = resolved.problem.cluster.chip, resolved.used.chip
    if chip.usd_per_chip_hour is None or "usd_per_chip_hour" in resolved.request["cluster"]:
        return []
    where = {"shipped": "the catalogue", "registered": "its catalogue entry"}.get(
        used.source, "the request"
    )
    return [
        f"a chip of {used.name} costs {chip.usd_per_chip_hour:g} USD an hour, as {where} has it"
    ]


def _gradients(resolved: ResolvedQuestion) -> str:
    problem = resolved.problem
    whose = (
        "the request says"
        if "gradient_bytes" in resolved.used.stack.changes
        else f"{problem.stack.id} does"
    )
    if problem.gradient_bytes > problem.stack.gradient_bytes:
        whose = f"workload.precision = {problem.workload.precision} has them"
    return f"gradients are kept and reduced in {problem.gradient_bytes:g} bytes each, as {whose}"


def _overlap(problem: Problem) -> str:
    stack = problem.stack
    hidden = [
        axis
        for axis in ("data", "tensor", "expert", "pipeline")
        if getattr(stack, f"overlap_{axis}")
    ]
    if stack.overlap_tensor and not problem.overlaps_tensor:
        hidden.remove("tensor")
    if not hidden:
        return f"no traffic runs beside compute: {stack.id} has it so"
    told = (
        f" when it is told to ({', '.join(stack.overlap_switches)})"
        if stack.overlap_switches
        else ""
    )
    knobs = ", ".join(f"stack.overlap_{axis}" for axis in hidden)
    apart = (
        ""
        if stack.overlap_zero1
        else ", but not what ZeRO 1 moves once a step (stack.overlap_zero1)"
    )
    return f"{stack.id} hides traffic beside compute{told}{apart}: {knobs} = false where it is off"


def _kernel(resolved: ResolvedQuestion) -> str:
    problem = resolved.problem
    whose = f"what {problem.stack.id} picks on {problem.cluster.chip.generation}"
    if resolved.used.stack.changes.get("attention_kernel") == problem.kernel:
        whose = "as the request says"
    return f"attention runs on {problem.kernel}, {whose}"
