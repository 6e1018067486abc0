"""Published training runs, one JSON object a line: model, cluster, training, measured.

Only what was run is read into a question: identifiers, titles, notes and measurements never are.
What a row leaves open is taken from the stack's habits and listed in `assumed`; open micro-batch
and recompute are returned as alternatives, of which the caller takes the best under the first
recompute policy, or where that does not fit of all, and of a stack that takes all sequences at once
the most that fit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from models.errors import Invalid, UnknownName
from models.layouts.defaults import torus_axes_covering_dims
from models.layouts.factors import divisors
from models.spec import catalogue
from models.spec.architecture import Architecture, MlaShape, MoeShape
from models.spec.flops import AttentionCount, step_time_from_throughput
from models.spec.hardware import GIB, Cluster, Fabric, Level, Torus
from models.spec.layout import Layout
from models.spec.problem import Problem
from models.spec.recompute import MODULES, RECOMPUTE
from models.spec.stack import Stack
from models.spec.workload import Workload

Row = Mapping[str, Any]

_KERNELS = {
    "flash-attention-1": "flash1",
    "flash-attention-2": "flash2",
    "megatron-fused-softmax": "fused_softmax",
    "unfused": "unfused",
}
_DRIVEN = {
    "megatron": {"NeMo": "megatron-bridge", "Primus-Turbo": "primus-turbo"},
    "fsdp": {"llm-foundry": "llm-foundry", "(?i)fms.fsdp": "fms-fsdp"},
    "in-house": {"HAI-LLM": "deepseek"},
}
"""By the stack of a row: a pattern in the name of its framework, and the stack of the catalogue
that it then is."""
_RELEASE = re.compile(r"^(?!.*\bmain\b).*NeMo.*?\b[v(]?(2\d)\.(0[1-9]|1[0-2])\b")
_MOST = {
    "max_tp": "tp",
    "max_cp": "cp",
    "max_ep": "ep",
    "max_pp": "pp",
    "max_virtual_stages": "vpp",
}
"""What a stack goes up to, by the field of a row that may show more."""
_STAGES = {"ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3, "fsdp": 3, "hsdp": 3, "gemini": 3}
"""The ZeRO stage of a kind of data parallelism, by how its name starts."""
_OPTIMIZERS = {"adafactor": "adafactor", "muon": "muon", "bf16 moments": "adamw_bf16_moments"}
"""By what its description has in it; all others keep what AdamW keeps."""
_LARGEST_MICRO_BATCH = 16


@dataclass(frozen=True, slots=True)
class Run:
    """A row as a question and its answer. `converted`: the step time comes from FLOP/s or MFU.
    `memory_bytes` is the peak that the source prints, most of them what the allocator reserved."""

    problem: Problem
    alternatives: tuple[Layout, ...]
    assumed: tuple[str, ...]
    step_time_s: float | None
    converted: bool
    memory_bytes: float | None = None


def read(row: Row, software_year: float) -> Run:
    """Raises Invalid, naming the field, where a row cannot be expressed.

    `software_year`: the newest software that the profile describes, from which the age of the run's
    is counted.
    """
    try:
        return _read(row, software_year)
    except (
        AttributeError,
        KeyError,
        TypeError,
        ValueError,
        ZeroDivisionError,
    ) as error:  # not what the schema says
        raise Invalid(
            "row", type(error).__name__, f"does not follow the schema of published runs: {error}"
        ) from error


def _read(row: Row, software_year: float) -> Run:
    assumed: list[str] = []
    training = row["training"]
    architecture = catalogue.with_known_biases(
        Architecture.from_shape(name="run", **shape(row["model"]))
    )
    cluster = _cluster(row["cluster"])
    stack = replace(_stack(row, cluster, assumed), age_years=_age(row, software_year, assumed))
    degrees = _degrees(training, cluster, architecture, stack, assumed)
    workload = _workload(training, degrees, cluster, stack, assumed)
    problem = Problem(architecture=architecture, cluster=cluster, workload=workload, stack=stack)
    layouts = _alternatives(row, problem, degrees, assumed)
    seconds, converted = _step_time(row["measured"], problem)
    as_described = "2p" not in (
        training.get("pp_schedule") or ""
    )  # ZB-2p holds twice what the schedules here do
    memory = float(row["measured"].get("memory_gb") or 0) * GIB * as_described
    return Run(problem, layouts, tuple(dict.fromkeys(assumed)), seconds, converted, memory or None)


def shape(model: Row) -> dict[str, Any]:
    """The model in the fields of Architecture.from_shape, less its name."""
    extra = model.get("extra") or {}
    if "global_head_dim" in extra:
        raise Invalid(
            "model.extra", "global_head_dim", "layers with heads of two shapes are not described"
        )
    window, chunked, period = _window(extra)
    moe, mla = model.get("moe"), model.get("mla")
    return {
        "num_layers": model["num_layers"],
        "hidden_size": model["hidden_size"],
        "intermediate_size": model["intermediate_size"],
        "num_attention_heads": model["num_attention_heads"],
        "num_key_value_heads": model["num_key_value_heads"],
        "head_dim": model.get("head_dim"),
        "vocab_size": model["vocab_size"],
        "gated_mlp": model.get("gated_mlp") is not False,
        "tie_word_embeddings": bool(model.get("tie_word_embeddings")),
        "qk_norm": bool(extra.get("qk_norm")),
        "sliding_window": window,
        "chunked_attention": chunked,
        "full_attention_period": period,
        "mla": MlaShape(**mla) if mla else None,
        "moe": (
            MoeShape(**{k: v for k, v in moe.items() if k in MoeShape.__slots__ and v is not None})
            if moe
            else None
        ),
        "mtp_layers": extra.get("mtp_layers") or 0,
    }


def _window(extra: Row) -> tuple[int | None, bool, int | None]:
    """(window, whether chunked, every how many layers attention is full), from the ways sources
    word it."""
    text = " ".join(
        f"{key} {value}" for key, value in extra.items() if "window" in key or "attention" in key
    )
    chunk = re.search(r"chunk\D{0,12}(\d{3,})", text)
    local_to_full = re.search(r"(\d+)(?: local)?\s*:\s*1(?: global)?", text)
    of_four = re.search(r"(\d+) of (\d+) layers", text)
    period = 2 if "alternating" in text else None
    if local_to_full:
        period = int(local_to_full.group(1)) + 1
    elif of_four:
        period = int(of_four.group(2))
    if chunk:
        return int(chunk.group(1)), True, period
    window = re.search(r"sliding_window (\d+)", text)
    return (int(window.group(1)), False, period) if window else (None, False, None)


def _cluster(row: Row) -> Cluster:
    chip = catalogue.chip(row["chip"])
    n = row.get("num_chips")
    if not n:
        raise Invalid("cluster.num_chips", n, "not stated")
    if chip.fabric.torus is not None:
        return Cluster(
            chip=chip,
            fabric=chip.fabric,
            num_chips=n,
            torus_shape=_torus_shape(row, chip.fabric.torus, n),
        )
    named = _named_fabric(row)
    if named is not None:
        return Cluster(chip=chip, fabric=named, num_chips=n)
    inner = chip.fabric.levels[0]
    size = row.get("scaleup_domain") or inner.size
    gbps = row.get("scaleout_gbps_per_chip")
    outer = gbps / 8 if gbps else chip.fabric.levels[-1].gb_s_per_chip
    levels = (replace(inner, size=size), Level(name="scale-out", gb_s_per_chip=outer))
    return Cluster(chip=chip, fabric=Fabric(id=chip.fabric.id, levels=levels), num_chips=n)


def _named_fabric(row: Row) -> Fabric | None:
    """A cluster of the catalogue, if the row names it first or as its runs do, and gives no figures
    of its own."""
    text = row.get("fabric") or ""
    name = text.split(",")[0]
    if not name or row.get("scaleout_gbps_per_chip"):
        return None
    try:
        fabric = catalogue.fabric_described_as(text) or catalogue.fabric(name)
    except UnknownName:
        return None
    return fabric if catalogue.fabric_chip(fabric.id) == catalogue.chip(row["chip"]).id else None


def _torus_shape(row: Row, torus: Torus, n: int) -> tuple[int, ...] | None:
    """Of a slice, where the row prints it or says that there are several."""
    shape = re.search(r"\b(\d+)x(\d+)(?:x(\d+))?\b", row.get("fabric") or "")
    slice_ = row.get("scaleup_domain")
    if shape is None:
        return torus.shape_for(slice_) if slice_ and slice_ < n and n % slice_ == 0 else None
    dims = tuple(int(d) for d in shape.groups() if d)
    return dims if n % math.prod(dims) == 0 else None


def _stack(row: Row, cluster: Cluster, assumed: list[str]) -> Stack:
    training = row["training"]
    try:
        stack = catalogue.stack(_stack_name(row))
    except UnknownName:
        assumed.append("stack")
        stack = catalogue.stack("generic")
    if row.get("date"):
        stack = stack.as_of(_year(software_date(row)))
    changes: dict[str, Any] = {}
    kernel = _KERNELS.get(training.get("attention_kernel"))
    if kernel:
        changes["attention_kernel"] = kernel
    if training.get("fused_norm_kernel") is not None:
        changes |= {"fused": False, "fused_norm": bool(training["fused_norm_kernel"])}
    if training.get("compile") is not None and stack.launch != "graph":
        changes |= {
            "launch": "compiled" if training["compile"] else "eager",
            "fused": bool(training["compile"]),
        }
    if stack.loss == "compiled" and training.get("compile") is False:
        changes["loss"] = "pytorch"
    if not kernel:
        assumed.append("attention_kernel")
    return replace(stack, **changes, **_shown(stack, training, cluster.chip.vendor))


def _stack_name(row: Row) -> str:
    """Rows name Megatron-Core and FSDP whatever drives them; that the name of their framework
    says."""
    driven = _DRIVEN.get(row["stack"], {})
    framework = row.get("framework") or ""
    return next(
        (stack for pattern, stack in driven.items() if re.search(pattern, framework)),
        str(row["stack"]),
    )


def _before(year: float | None, row: Row) -> bool:
    """Whether a run is older than what came to its stack in that year."""
    return bool(year and row.get("date") and _year(row["date"]) < year)


def _age(row: Row, software_year: float, assumed: list[str]) -> float:
    """Years; a date without a month means the middle of its year, and no date the newest
    software."""
    if not row.get("date"):
        assumed.append("date")
        return 0.0
    return age_years(software_date(row), software_year)


def software_date(row: Row) -> str:
    """Of NeMo the month of its release, which may be published later; of its main branch that of
    the run."""
    release = _RELEASE.search(row.get("framework") or "")
    return min(f"20{release[1]}-{release[2]}", row["date"]) if release else str(row["date"])


def age_years(date: str, software_year: float) -> float:
    """How much older than the newest software that a profile describes; a date is "2024" or
    "2024-07"."""
    return max(software_year - _year(date), 0.0)


def _year(date: str) -> float:
    year, _, month = date.partition("-")
    return int(year) + ((int(month[:2]) - 0.5) / 12 if month else 0.5)


def _shown(stack: Stack, training: Row, vendor: str) -> dict[str, Any]:
    """A run shows what its build of the stack could do: no sequence parallelism yet, a fork's
    chips, schedule or degrees."""
    shown: dict[str, Any] = {}
    if stack.vendors:
        shown["vendors"] = tuple(dict.fromkeys((*stack.vendors, vendor)))
    if training.get("sequence_parallel") is not None:
        shown["sequence_parallel"] = (True, False)
    for most, degree in _MOST.items():
        if isinstance(training.get(degree), int):
            shown[most] = max(training[degree], getattr(stack, most))
    schedule = (training.get("pp_schedule") or "").lower()
    if schedule.startswith("zb") or "dualpipe" in schedule:
        bubbles = "zero_bubble", "zero_bubble_v", "dualpipe"
        shown["schedules"] = tuple(dict.fromkeys((*stack.schedules, *bubbles)))
    stage = _stage(training)
    if stage is not None:
        shown["zero_stages"] = tuple(dict.fromkeys((*stack.zero_stages, stage)))
    moved = [
        name
        for name in ("activations", "optimizer")
        if name in (training.get("offload") or "").lower()
    ]
    if moved:
        shown |= {"offload": tuple(dict.fromkeys((*stack.offload, *moved))), "offload_alone": False}
    return shown


def _degrees(
    training: Row, cluster: Cluster, architecture: Architecture, stack: Stack, assumed: list[str]
) -> dict[str, Any]:
    """Degrees, ZeRO stage and reshard, in the names of Layout."""
    n = cluster.num_devices
    tp, pp, cp = (_known(training, name, assumed) for name in ("tp", "pp", "cp"))
    dp = training.get("dp") or n // (tp * pp * cp)
    if tp * pp * cp * dp != n and n % (tp * pp * cp) == 0:
        dp = n // (tp * pp * cp)
        assumed.append("dp")
    zero, reshard, shard = _sharding(training, stack, dp, pp, assumed)
    ep = (training.get("ep") or 1) if architecture.is_moe else 1
    etp = training.get("etp") or _expert_tensor(stack, architecture, tp, ep, dp * cp * tp)
    if (
        stack.usual_sharding
        and cluster.fabric.torus
        and not (_kind(training) or training.get("fsdp_size"))
    ):
        shard = _within_slice(cluster, shard, tp * cp, ep * etp)
    if training.get("sequence_parallel") is None and tp > 1:
        assumed.append("sequence_parallel")
    sp = training.get("sequence_parallel")
    sp = (True in stack.sequence_parallel) if sp is None else sp
    return {
        "tp": tp, "pp": pp, "cp": cp, "dp_shard": shard, "dp_replicate": dp // shard, "ep": ep,
        "etp": etp, "zero_stage": zero, "reshard": reshard,
        "sequence_parallel": bool(sp and tp > 1),
    }  # fmt: skip


def _within_slice(cluster: Cluster, shard: int, beside: int, experts: int) -> int:
    """What is sharded within a slice and replicated over slices; or over all of them, where the
    other axes leave no room in one."""
    inside = math.gcd(shard, cluster.scale_up_domain // beside)
    return inside if inside > 1 and inside * beside % experts == 0 else shard


def _expert_tensor(stack: Stack, architecture: Architecture, tp: int, ep: int, stage: int) -> int:
    """As the dense layers are, unless a stage of so many devices could not have been cut so."""
    if stage % (ep * tp):
        return 1
    by_habit = ep > 1 and stack.expert_tensor_parallel and stack.launch != "graph"
    return (
        tp if architecture.is_moe and (by_habit or stack.expert_folding == "beside_tensor") else 1
    )


def _kind(training: Row) -> str:
    return str(training.get("data_parallel_kind") or "").lower()


def _stage(training: Row) -> int | None:
    kind = _kind(training)
    return next((stage for name, stage in _STAGES.items() if kind.startswith(name)), None)


def _known(training: Row, name: str, assumed: list[str]) -> int:
    if training.get(name) is None:
        assumed.append(name)
    return training.get(name) or 1


def _sharding(
    training: Row, stack: Stack, dp: int, pp: int, assumed: list[str]
) -> tuple[int, bool, int]:
    """(ZeRO stage, reshard, degree of sharding)."""
    kind, stage = _kind(training), _stage(training)
    if not kind:
        assumed.append("data_parallel_kind")
        stage = 1 if 1 in stack.zero_stages and not stack.usual_sharding else 3
    if stage == 0:
        return 0, True, 1
    if stage in (1, 2):
        return stage, True, dp
    size = training.get("fsdp_size")
    named = re.search(r"fsdp\s*(\d+)", kind)
    size = size or (int(named.group(1)) if named else None) or dp
    shard = size if dp % size == 0 else dp
    kept = "no reshard" in kind or (
        pp > 1 and False in stack.reshard
    )  # what FSDP does under pipelines by default
    return 3, not kept, shard


def _workload(
    training: Row, degrees: Row, cluster: Cluster, stack: Stack, assumed: list[str]
) -> Workload:
    seq_len = training.get("seq_len") or stack.usual_seq_len
    if seq_len is None:
        raise Invalid("training.seq_len", None, "not stated")
    if training.get("seq_len") is None:
        assumed.append("seq_len")
    dp = degrees["dp_shard"] * degrees["dp_replicate"]
    batch = training.get("global_batch_sequences")
    if batch is None and training.get("micro_batch_size"):
        batch = training["micro_batch_size"] * (training.get("grad_accum") or 1) * dp
        assumed.append("global_batch")
    if batch is None and stack.usual_sequences:
        batch = stack.usual_sequences * cluster.num_devices
        assumed.append("global_batch")
    if batch is None:
        raise Invalid(
            "training.global_batch_sequences",
            None,
            "not stated, nor a micro-batch to derive it from",
        )
    if training.get("compute_dtype") is None:
        assumed.append("precision")
    optimizer = (training.get("optimizer") or "").lower()
    name = next((name for words, name in _OPTIMIZERS.items() if words in optimizer), "adamw")
    return Workload(
        seq_len=seq_len,
        global_batch=int(batch),
        precision=training.get("compute_dtype") or "bf16",
        optimizer=name,
        routing="balanced",
    )


def _alternatives(
    row: Row, problem: Problem, degrees: dict[str, Any], assumed: list[str]
) -> tuple[Layout, ...]:
    training = row["training"]
    pp, layers = degrees["pp"], problem.architecture.num_layers
    offload = (training.get("offload") or "").lower()
    filled = torus_axes_covering_dims(problem, Layout(**degrees))
    return tuple(
        Layout(
            **degrees,
            torus_axes=filled,
            micro_batch=micro_batch,
            schedule=schedule,
            virtual_stages=virtual,
            balanced=pp > 1 and (layers % (pp * virtual) != 0 or problem.stack.splits_by_threshold),
            recompute=recompute,
            recompute_modules=modules,
            recompute_layers=(
                first if layers % (pp * virtual) == 0 and first * pp * virtual < layers else 0
            ),
            offload_activations=_to_host(training),
            offload_optimizer="optimizer" in offload,
        )
        for schedule, virtual in _schedules(training, problem, pp, assumed)
        for recompute, modules, first in _recompute(
            training, problem, layers // (pp * virtual), assumed
        )
        for micro_batch in _micro_batches(row, problem, degrees, assumed)
    )


def _schedules(
    training: Row, problem: Problem, pp: int, assumed: list[str]
) -> list[tuple[str, int]]:
    """The stated schedule; where none is, plain and as interleaved as the layers allow."""
    if pp == 1:
        return [("1f1b", 1)]
    stated = _schedule(training, problem, pp, assumed)
    layers = problem.architecture.num_layers // pp
    open_ = not training.get("pp_schedule") and training.get("vpp") is None
    if (
        open_
        and "interleaved" in problem.stack.schedules
        and problem.architecture.num_layers % pp == 0
        and layers > 1
    ):
        return [stated, ("interleaved", min(layers, problem.stack.max_virtual_stages))]
    return [stated]


def _schedule(training: Row, problem: Problem, pp: int, assumed: list[str]) -> tuple[str, int]:
    text, chunks = (training.get("pp_schedule") or "").lower(), training.get("vpp")
    virtual = chunks if isinstance(chunks, int) else 1
    if isinstance(chunks, str) and "max" in chunks:
        virtual = _one_layer_each(problem.architecture.num_layers, pp)
    if not text or text == "none":
        assumed.append("schedule")
    if "zbv" in text:
        return "zero_bubble_v", 2
    if text.startswith("zb") or "zero" in text:
        return "zero_bubble", 1
    if "dualpipe" in text:
        return "dualpipe", 1
    if virtual > 1:
        return "interleaved", virtual
    if "interleav" in text or text == "1f1b-i":
        assumed.append("virtual_stages")
        layers = problem.architecture.num_layers  # embedding and head may count as two more
        fitting = [v for v in range(2, 9) if 0 in (layers % (pp * v), (layers + 2) % (pp * v))]
        return "interleaved", fitting[-1] if fitting else 2
    return ("afab", 1) if problem.stack.schedules[0] == "afab" else ("1f1b", 1)


def _one_layer_each(layers: int, pp: int) -> int:
    """Chunks of a stage: embedding and head may be two by themselves."""
    most = -(-layers // pp)
    return most if most * pp <= layers + 2 else max(layers // pp, 1)


def _recompute(
    training: Row, problem: Problem, chunk: int, assumed: list[str]
) -> list[tuple[str, tuple[str, ...], int]]:
    """Policies, with their modules and, of a full one, how many layers of a chunk: where nothing is
    stated, what the stack does unless told otherwise, and what recomputes more; where a stack has
    no recompute of modules, "selective" is of some layers."""
    text = training.get("recompute")
    if text is None:
        assumed.append("recompute")
        least = RECOMPUTE.index(problem.stack.default_recompute)
        of_model = (
            tuple(filter(problem.has_module, modules)) for modules in problem.stack.selective
        )
        sets = {"selective": tuple(dict.fromkeys(filter(None, of_model)))}
        usual = (policy for policy in problem.stack.recompute if RECOMPUTE.index(policy) >= least)
        found = [(policy, modules, 0) for policy in usual for modules in sets.get(policy, ((),))]
        return found + [
            ("full", (), layers) for layers in _eighths(chunk) if problem.stack.recompute_layers
        ]
    policy, _, rest = text.partition(":")
    if (
        policy.startswith("selective")
        and "selective" not in problem.stack.recompute
        and problem.stack.recompute_layers
    ):
        stated = _layers_of(text, chunk)
        if stated is None:
            assumed.append("recompute")
        return [
            ("full", (), layers)
            for layers in ((*_eighths(chunk), 0) if stated is None else (stated,))
        ]
    if policy == "selective":
        named = tuple(
            name for name in MODULES if name in rest.split(",") and problem.has_module(name)
        )
        return [(policy, named, 0)]
    if policy in RECOMPUTE:
        blocks = re.fullmatch(r"block,(\d+) layers", rest)
        return [(policy, (), int(blocks[1]) if blocks else 0)]
    if policy == "custom" and not _to_host(training):  # keeps what it names, and no row says what
        assumed.append("recompute")
        most = tuple(filter(problem.has_module, problem.stack.selective[-1]))
        return [("selective", most, 0), ("full", (), 0)]
    return [("full" if policy.startswith(("full", "custom", "qkv")) else "selective", (), 0)]


def _to_host(training: Row) -> bool:
    """Whether activations go there."""
    offload = (training.get("offload") or "").lower()
    return (
        "decoder_layer" in offload
        or "activations" in offload
        or "offload" in (training.get("recompute") or "")
    )


def _layers_of(text: str, layers: int) -> int | None:
    """How many of so many layers a text speaks of: "8 layers", "1/3" or "0.5"; 0 is all, None that
    it does not say."""
    count, share = re.search(r"(\d+) layers", text), re.search(r"\b(\d+/[1-9]\d*|0?\.\d+)\b", text)
    if count:
        return min(int(count[1]), layers) % layers
    return max(round(min(float(Fraction(share[1])), 1.0) * layers), 1) % layers if share else None


def _eighths(layers: int) -> list[int]:
    """From one to seven of them."""
    return sorted({layers * eighths // 8 for eighths in range(1, 8)} - {0})


def _micro_batches(row: Row, problem: Problem, degrees: Row, assumed: list[str]) -> tuple[int, ...]:
    training, pp = row["training"], degrees["pp"]
    share = problem.workload.global_batch // (degrees["dp_shard"] * degrees["dp_replicate"])
    stated, accumulation = training.get("micro_batch_size"), training.get("grad_accum")
    if stated is not None and stated == int(stated) and share % int(stated) == 0:
        return (int(stated),)
    if accumulation and share % accumulation == 0 and share:
        return (share // accumulation,)
    assumed.append("micro_batch")
    if share < 1:
        raise Invalid(
            "training.global_batch_sequences",
            problem.workload.global_batch,
            "less than one sequence a rank",
        )
    if pp > 1 and share % pp == 0 and _before(problem.stack.one_sequence_since, row):
        return (share // pp,)
    if pp == 1 and problem.stack.usual_sequences:
        return tuple(divisors(share))  # all sequences of a device at once, or as many as fit
    if (
        problem.stack.launch != "graph"
        and training.get("recompute") is None
        and problem.architecture.is_moe
    ):
        return (
            1,
        )  # the default of these stacks; who states recompute and no micro-batch has tuned both
    return tuple(d for d in divisors(share) if d <= _LARGEST_MICRO_BATCH)


def _step_time(measured: Row, problem: Problem) -> tuple[float | None, bool]:
    """(step time, whether it was converted from FLOP/s or MFU in the row's convention)."""
    n, workload = problem.cluster.num_chips, problem.workload
    if seconds := measured.get("step_time_s"):
        return float(seconds), False
    if rate := measured.get("tokens_per_s_per_chip"):
        return workload.tokens / (rate * n), False
    counted = measured.get("flops_counted") or {}
    attention: AttentionCount = counted.get("attention") or "full"
    recompute = bool(counted.get("recompute"))
    flops = measured.get("tflops_per_chip")
    if flops is None:
        ratio = measured.get("mfu") or measured.get("hfu")
        if ratio is None:
            return None, False
        recompute = recompute or measured.get("mfu") is None
        flops = ratio * problem.cluster.chip.peak_flops(workload.number_format.gemm) / 1e12
    seconds = step_time_from_throughput(
        flops * 1e12, n, problem.architecture, workload, attention, recompute_counted=recompute
    )
    return seconds, True
