"""Published runs as questions: what is stated is taken, what is open is assumed and said, what is
broken is refused."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from models.cost.predictions import predict
from models.errors import DomainError, Invalid, UnknownName
from models.layouts.rules import first_broken, require_legal
from models.spec import catalogue
from models.spec.hardware import GIB
from models.spec.layout import Layouts
from models.spec.profile import shipped_profile
from service.formats import published
from service.tools.fit_profile import choose_layout
from tests.test_scores import ROW

YEAR = 2026.5


def row(**changes: Any) -> dict[str, Any]:
    """The row with fields of its parts replaced: `training={"tp": 2}`."""
    made = copy.deepcopy(ROW)
    for name, value in changes.items():
        made[name] = {**made.get(name, {}), **value} if isinstance(value, dict) else value
    return made


def test_what_a_row_states_is_taken() -> None:
    run = published.read(
        row(training={"tp": 2, "sequence_parallel": True}, measured={"memory_gb": 50}), YEAR
    )
    (layout,) = run.alternatives
    assert (layout.tp, layout.dp_shard, layout.zero_stage, layout.micro_batch) == (2, 4, 1, 1)
    assert run.step_time_s == 1.0
    assert run.memory_bytes == 50 * GIB
    assert not run.converted
    assert run.problem.stack.age_years == pytest.approx(YEAR - 2025 - 0.5 / 12)


def test_identifiers_and_measurements_are_no_inputs() -> None:
    """Only the answer differs."""
    one = published.read(row(), YEAR)
    other = published.read(row(id="x", notes="y", measured={"step_time_s": 9.0}), YEAR)
    assert (one.problem, one.alternatives) == (other.problem, other.alternatives)
    assert (one.step_time_s, other.step_time_s) == (1.0, 9.0)


@pytest.mark.parametrize("framework", ["fms-fsdp (PyTorch FSDP)", "IBM FMS FSDP", "fms_fsdp"])
@pytest.mark.parametrize(
    ("recompute", "layers", "stated"),
    [
        ("selective", [4, 8, 12, 16, 20, 24, 28, 0], False),
        ("selective (some blocks)", [4, 8, 12, 16, 20, 24, 28, 0], False),
        ("selective:1/4", [8], True),
        ("selective:0.5", [16], True),
        ("selective:12 layers", [12], True),
        ("selective:40 layers", [0], True),
    ],
)
def test_checkpointing_may_be_of_a_share_of_layers(
    framework: str, recompute: str, layers: list[int], stated: bool
) -> None:
    """Where a stack has no recompute of modules."""
    training = {"recompute": recompute, "data_parallel_kind": "fsdp"}
    run = published.read(row(stack="fsdp", framework=framework, training=training), YEAR)
    assert {x.recompute for x in run.alternatives} == {"full"}
    assert [x.recompute_layers for x in run.alternatives] == layers
    assert ("recompute" not in run.assumed) == stated


def test_the_fewest_layers_that_fit_are_checkpointed_where_a_run_does_not_say() -> None:
    training = {"recompute": "selective", "data_parallel_kind": "fsdp", "micro_batch_size": 2}
    training |= {
        "seq_len": 8192,
        "global_batch_sequences": 16,
        "grad_accum": 1,
        "dp": 8,
        "fsdp_size": 8,
    }
    run = published.read(row(stack="fsdp", framework="fms-fsdp", training=training), YEAR)
    profile = shipped_profile()
    fits = predict(
        run.problem, Layouts.of(run.alternatives), profile.coefficients(run.problem.scopes)
    ).fits()
    assert 0 < fits.sum() < len(fits)
    assert choose_layout(run, profile) == run.alternatives[int(np.argmax(fits))]


def test_an_open_schedule_is_plain_or_as_interleaved_as_the_layers_allow() -> None:
    run = published.read(row(training={"pp": 4}), YEAR)
    assert {(x.schedule, x.virtual_stages) for x in run.alternatives} == {
        ("1f1b", 1),
        ("interleaved", 8),
    }
    stated = published.read(row(training={"pp": 4, "pp_schedule": "1f1b"}), YEAR)
    assert {x.schedule for x in stated.alternatives} == {"1f1b"}


@pytest.mark.parametrize(
    ("recompute", "offload", "policies"),
    [
        ("custom", "none", [("selective", ("layernorm", "mlp")), ("full", ())]),
        ("custom", "decoder_layer_input", [("full", ())]),
        ("minimal", None, [("selective", ())]),
        ("full", None, [("full", ())]),
    ],
)
def test_a_custom_policy_of_maxtext_keeps_attention_if_that_fits(
    recompute: str, offload: str | None, policies: list[tuple[str, tuple[str, ...]]]
) -> None:
    training = {"recompute": recompute, "offload": offload, "data_parallel_kind": "fsdp"}
    run = published.read(row(stack="maxtext", training=training), YEAR)
    assert (
        list(dict.fromkeys((x.recompute, x.recompute_modules) for x in run.alternatives))
        == policies
    )
    assert ("recompute" in run.assumed) == (len(policies) > 1)


def test_open_recompute_starts_from_the_default_of_the_stack() -> None:
    run = published.read(row(training={"recompute": None, "micro_batch_size": None}), YEAR)
    policies = list(
        dict.fromkeys(
            (x.recompute, x.recompute_layers, x.recompute_modules) for x in run.alternatives
        )
    )
    assert [policy for policy, _, _ in policies[:6]] == ["none", *["selective"] * 4, "full"]
    assert [layers for _, layers, _ in policies] == [0] * 6 + [4, 8, 12, 16, 20, 24, 28]
    assert {"recompute", "micro_batch"} <= set(run.assumed)


@pytest.mark.parametrize("stack", ["in-house", "megatron", "torchtitan", "fsdp", "nanotron"])
@pytest.mark.parametrize(
    "moe", [None, {"num_experts": 8, "experts_per_token": 2, "moe_intermediate_size": 14336}]
)
def test_every_policy_for_open_recompute_is_legal(stack: str, moe: dict[str, int] | None) -> None:
    """Modules that a stack recomputes and a model does not have are left out."""
    run = published.read(row(stack=stack, model={"moe": moe}, training={"recompute": None}), YEAR)
    assert (first_broken(run.problem, Layouts.of(run.alternatives)) < 0).all()
    assert (
        "selective" in {x.recompute for x in run.alternatives}
        or "selective" not in run.problem.stack.recompute
    )


def test_dense_runs_have_tuned_an_open_micro_batch_and_sparse_ones_take_the_default() -> None:
    def open_micro_batches(**model: Any) -> set[int]:
        run = published.read(
            row(model=model, training={"recompute": None, "micro_batch_size": None}), YEAR
        )
        return {layout.micro_batch for layout in run.alternatives}

    assert open_micro_batches() > {1, 2}
    assert open_micro_batches(
        moe={"num_experts": 8, "experts_per_token": 2, "moe_intermediate_size": 14336}
    ) == {1}


@pytest.mark.parametrize(
    ("framework", "date"),
    [
        ("NeMo/Megatron-Core (v25.05.05 (support/25.05))", "2025-05"),
        ("Megatron-Bridge v0.5.1 (NeMo 26.06.01)", "2026-06"),
        ("Megatron-Bridge main 2026-07/08 (NeMo 26.06)", "2026-08"),
        ("NeMo-Framework-Launcher (c3ebcc97)", "2026-08"),
        ("NeMo 26.09", "2026-08"),  # printed before its release
    ],
)
def test_software_is_as_old_as_its_release(framework: str, date: str) -> None:
    assert published.software_date(row(framework=framework, date="2026-08")) == date


@pytest.mark.parametrize(
    ("date", "dispatcher"), [("2025-04", "alltoall"), ("2026-02", "deduplicated")]
)
def test_a_token_goes_once_to_each_expert_before_it_went_once_to_each_domain(
    date: str, dispatcher: str
) -> None:
    assert published.read(row(date=date), YEAR).problem.stack.dispatcher == dispatcher


@pytest.mark.parametrize(("date", "overlaps"), [("2025-04", False), ("2025-10", True)])
def test_all_to_alls_run_beside_another_micro_batch_since_the_stack_can(
    date: str, overlaps: bool
) -> None:
    makers = {"organisation": "nvidia"}
    read = published.read(row(date=date, source=makers), YEAR)
    assert read.problem.stack.overlap_expert == overlaps


def test_a_run_of_maxtext_has_its_defaults_where_the_source_leaves_them_out() -> None:
    said = row(
        stack="maxtext",
        training={
            "seq_len": None,
            "global_batch_sequences": None,
            "micro_batch_size": None,
            "recompute": "selective",
        },
    )
    run = published.read(said, YEAR)
    assert run.problem.workload.seq_len == 2048
    assert run.problem.workload.global_batch == 12 * run.problem.cluster.num_devices
    assert {"seq_len", "global_batch"} <= set(run.assumed)
    assert max(layout.micro_batch for layout in run.alternatives) == 12
    assert 1 < choose_layout(run, shipped_profile()).micro_batch < 12  # as many as fit
    small = published.read({**said, "model": {**said["model"], "num_layers": 4}}, YEAR)
    assert choose_layout(small, shipped_profile()).micro_batch == 12  # no gradients are accumulated
    with pytest.raises(Invalid, match="not stated"):
        published.read({**said, "stack": "megatron"}, YEAR)


def test_expert_tensor_parallelism_is_that_of_the_dense_layers_unless_stated() -> None:
    moe = {"moe": {"num_experts": 8, "experts_per_token": 2, "moe_intermediate_size": 14336}}
    training = {"tp": 2, "ep": 4, "sequence_parallel": True}
    (legacy,) = published.read(row(model=moe, training=training), YEAR).alternatives
    (folded,) = published.read(row(model=moe, training={**training, "etp": 1}), YEAR).alternatives
    assert (legacy.etp, folded.etp) == (2, 1)
    (one_way,) = published.read(row(model=moe, training={**training, "ep": 8}), YEAR).alternatives
    assert one_way.etp == 1  # eight ranks hold no eight groups of two


@pytest.mark.parametrize(
    ("date", "kernel"), [("2022-06", "fused_softmax"), ("2024-06", "auto"), (None, "auto")]
)
def test_attention_before_flash_kernels_was_a_fused_softmax(date: str | None, kernel: str) -> None:
    assert published.read(row(date=date), YEAR).problem.stack.attention_kernel == kernel


@pytest.mark.parametrize(("date", "loss"), [("2024-10", "pytorch"), ("2026-01", "compiled")])
def test_a_loss_of_before_it_was_compiled_is_in_several_kernels(date: str, loss: str) -> None:
    stack = published.read(
        row(stack="torchtitan", date=date, training={"data_parallel_kind": "fsdp"}), YEAR
    ).problem.stack
    assert stack.loss == loss


def test_a_loss_that_nothing_compiles_is_in_several_kernels() -> None:
    training = {"data_parallel_kind": "fsdp", "compile": False}
    stack = published.read(
        row(stack="torchtitan", date="2026-01", training=training), YEAR
    ).problem.stack
    assert (stack.loss, stack.launch) == ("pytorch", "eager")
    assert (
        published.read(row(stack="nanotron", training={"compile": False}), YEAR)
    ).problem.stack.loss == "fused"  # needs no compiler


@pytest.mark.parametrize(("date", "sizes"), [("2024-10", {4}), ("2026-01", {1, 2, 4, 8})])
def test_micro_batches_of_old_pipelines_are_as_many_as_stages(date: str, sizes: set[int]) -> None:
    training = {
        "pp": 2,
        "pp_schedule": "1f1b",
        "data_parallel_kind": "fsdp",
        "micro_batch_size": None,
        "grad_accum": None,
        "recompute": "full",
        "global_batch_sequences": 32,
    }
    run = published.read(row(stack="torchtitan", date=date, training=training), YEAR)
    assert {x.micro_batch for x in run.alternatives} == sizes


@pytest.mark.parametrize(
    ("stack", "training", "layout"),
    [
        ("fsdp", {"tp": 8, "data_parallel_kind": "fsdp"}, {"tp": 8, "zero_stage": 3}),
        ("megatron-deepspeed", {"data_parallel_kind": "zero2"}, {"zero_stage": 2}),
        (
            "megatron-deepspeed",
            {
                "data_parallel_kind": "zero3",
                "offload": "optimizer and activations to CPU",
                "recompute": "full",
            },
            {
                "zero_stage": 3,
                "offload_activations": True,
                "offload_optimizer": True,
                "recompute": "full",
            },
        ),
    ],
)
def test_a_run_shows_what_its_build_of_the_stack_can(
    stack: str, training: dict[str, Any], layout: dict[str, Any]
) -> None:
    """None of these is offered by the stack of the catalogue."""
    run = published.read(row(stack=stack, training={"tp": 1, **training}), YEAR)
    chosen = run.alternatives[0]
    with pytest.raises(Invalid, match="offered|searched"):
        require_legal(replace(run.problem, stack=catalogue.stack(stack)), chosen)
    assert {name: getattr(chosen, name) for name in layout} == layout
    require_legal(run.problem, chosen)


@pytest.mark.parametrize(
    ("stack", "chip"), [("megatron", "gaudi2"), ("torchtitan", "trainium2"), ("megatron", "pvc")]
)
def test_a_run_shows_that_its_build_runs_on_its_chips(stack: str, chip: str) -> None:
    """Forks do, on chips that the stack of the catalogue does not know."""
    run = published.read(row(stack=stack, cluster={"chip": chip}), YEAR)
    require_legal(run.problem, choose_layout(run, shipped_profile()))
    with pytest.raises(Invalid, match="runs on chips of"):
        replace(run.problem, stack=catalogue.stack(stack))


@pytest.mark.parametrize(
    ("stated", "schedule", "chunks"),
    [("zb-zbv", "zero_bubble_v", 2), ("zbv", "zero_bubble_v", 2), ("zb-1p", "zero_bubble", 1)],
)
def test_a_zero_bubble_schedule_may_go_in_a_v(stated: str, schedule: str, chunks: int) -> None:
    run = published.read(row(training={"pp": 4, "pp_schedule": stated, "vpp": chunks}), YEAR)
    assert {(x.schedule, x.virtual_stages) for x in run.alternatives} == {(schedule, chunks)}
    require_legal(run.problem, run.alternatives[0])


@pytest.mark.parametrize(
    ("layers", "pp", "chunks"), [(22, 8, 3), (61, 8, 7), (64, 8, 8), (126, 16, 8), (62, 16, 4)]
)
def test_one_layer_a_chunk_may_leave_both_ends_without(layers: int, pp: int, chunks: int) -> None:
    training = {
        "pp": pp,
        "pp_schedule": "1f1b-i",
        "vpp": "max: 1 layer per chunk",
        "micro_batch_size": 1,
    }
    training |= {"global_batch_sequences": 2 * pp, "dp": 1, "tp": 1}
    run = published.read(
        row(model={"num_layers": layers}, cluster={"num_chips": pp}, training=training), YEAR
    )
    assert {x.virtual_stages for x in run.alternatives} == {chunks}
    require_legal(run.problem, choose_layout(run, shipped_profile()))


@pytest.mark.parametrize(("layers", "chunks"), [(48, 6), (46, 6), (94, 8), (61, 2)])
def test_where_only_interleaving_is_stated_ends_may_count_as_layers(
    layers: int, chunks: int
) -> None:
    run = published.read(
        row(model={"num_layers": layers}, training={"pp": 4, "pp_schedule": "interleaved"}), YEAR
    )
    assert {x.virtual_stages for x in run.alternatives} == {chunks}


def test_torchtitan_interleaves_two_chunks_unless_told_otherwise() -> None:
    """Though 126 layers would go into 128 places in chunks of one."""
    changes: dict[str, Any] = {"model": {"num_layers": 126}, "stack": "torchtitan"}
    stated = {"pp": 4, "pp_schedule": "interleaved"}
    run = published.read(row(training=stated, **changes), YEAR)
    assert {x.virtual_stages for x in run.alternatives} == {2}
    run = published.read(row(training={**stated, "vpp": 4}, **changes), YEAR)
    assert {x.virtual_stages for x in run.alternatives} == {4}


@pytest.mark.parametrize(
    ("stated", "optimizer"),
    [
        (None, "adamw"),
        ("Adam", "adamw"),
        ("Adafactor", "adafactor"),
        ("adamw (bf16 moments)", "adamw_bf16_moments"),
        ("MuonClip", "muon"),
    ],
)
def test_an_optimizer_is_known_by_what_its_description_names(
    stated: str | None, optimizer: str
) -> None:
    assert (
        published.read(row(training={"optimizer": stated}), YEAR).problem.workload.optimizer
        == optimizer
    )


@pytest.mark.parametrize(
    ("training", "masters"),
    [
        ({"optimizer": "adamw"}, True),
        ({"optimizer": "adamw (bf16 moments)"}, True),
        ({"optimizer": "adamw (bf16 moments; parameters and gradients bf16)"}, False),
        ({"optimizer": "adamw (bf16 moments, bf16 parameters, stochastic rounding)"}, False),
        ({"switches": {"autocast": "bf16 with fp32 optimizer"}}, True),
        ({"switches": {"autocast": "bf16 with stochastic rounding"}}, False),
    ],
)
def test_parameters_whose_only_copy_has_16_bits_have_no_master_weights(
    training: dict[str, Any], masters: bool
) -> None:
    assert published.read(row(training=training), YEAR).problem.workload.master_weights == masters


def test_nemo_is_megatron_with_gradients_of_16_bits() -> None:
    """And with its coefficients."""
    plain, nemo = (
        published.read(row(framework=name), YEAR).problem
        for name in ("Megatron-LM 2025", "NeMo 25.04")
    )
    assert (plain.stack.id, nemo.stack.id) == ("megatron", "megatron-bridge")
    assert (plain.gradient_bytes, nemo.gradient_bytes) == (4, 2)
    assert plain.scopes == nemo.scopes
    assert plain.neighbourhood_scopes == nemo.neighbourhood_scopes


def test_memory_of_a_schedule_that_is_not_described_is_not_compared() -> None:
    def memory(schedule: str) -> float | None:
        training = {"pp": 2, "pp_schedule": schedule}
        return published.read(row(training=training, measured={"memory_gb": 50}), YEAR).memory_bytes

    assert (memory("zb-1p"), memory("zb-2p")) == (50 * GIB, None)


def test_flops_are_converted_in_their_own_convention() -> None:
    def seconds(counted: dict[str, Any]) -> float:
        measured = {"step_time_s": None, "tflops_per_chip": 400, "flops_counted": counted}
        run = published.read(row(measured=measured), YEAR)
        assert run.converted
        assert run.step_time_s is not None
        return run.step_time_s

    causal, full = seconds({"attention": "causal"}), seconds({"attention": "full"})
    assert full > causal
    assert seconds({"attention": "full", "recompute": True}) > full


def test_a_stack_nobody_knows_is_a_generic_one() -> None:
    run = published.read(row(stack="something-new"), YEAR)
    assert run.problem.stack.id == "generic"
    assert "stack" in run.assumed


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"num_layers": None}}, {"model": {"moe": "many"}},
        {"cluster": {"num_chips": "all"}},
        {"cluster": {"chip": None}}, {"cluster": {"chip": "abacus"}}, {"training": {"tp": "two"}},
        {"training": {"micro_batch_size": 0}}, {"training": {"seq_len": None}},
        {"date": "yesterday"},
        {"measured": {"memory_gb": "much"}},
    ],
)  # fmt: skip
def test_a_row_that_cannot_be_read_says_so(changes: dict[str, Any]) -> None:
    with pytest.raises(DomainError):
        published.read(row(**changes), YEAR)


def test_a_row_without_its_parts_does_not_follow_the_schema() -> None:
    with pytest.raises(Invalid, match="schema of published runs"):
        published.read({"model": {}}, YEAR)


def test_a_cluster_is_known_by_how_its_runs_describe_it_and_not_by_that_name() -> None:
    """The sweep of Aleph Alpha prints machines that others have too, and its own network."""
    described = {
        "chip": "a100-sxm-80gb",
        "fabric": "DGX A100, InfiniBand",
        "scaleout_gbps_per_chip": None,
    }
    found = published.read(row(cluster=described), YEAR).problem.cluster.fabric
    assert (found.id, found.levels[1].gb_s_per_chip) == ("aleph-alpha-a100", 25 / 8)
    with pytest.raises(UnknownName):
        catalogue.fabric("DGX A100, InfiniBand")


def test_a_cluster_that_is_named_is_that_of_the_catalogue() -> None:
    known = {"fabric": "HF science cluster, 8xH100 nodes", "scaleout_gbps_per_chip": None}
    assert published.read(row(cluster=known), YEAR).problem.cluster.fabric.id == "hf-science"
    with_figures = published.read(row(cluster={**known, "scaleout_gbps_per_chip": 200}), YEAR)
    assert with_figures.problem.cluster.fabric.levels[1].gb_s_per_chip == 25
    other_chip = published.read(row(cluster={**known, "chip": "h200-sxm-141gb"}), YEAR)
    assert other_chip.problem.cluster.fabric.id != "hf-science"


@pytest.mark.parametrize(
    ("changes", "degrees"),
    [
        ({"tp": 4}, (4, 64)),
        ({"tp": 4, "cp": 2}, (4, 32)),
        ({"tp": 4, "data_parallel_kind": "fsdp"}, (1, 256)),
        ({"tp": 4, "fsdp_size": 128}, (2, 128)),
        ({"tp": 16, "cp": 16}, (1, 4)),  # no room for it within a slice
        ({"tp": 16, "cp": 32}, (1, 2)),
    ],
)
def test_sharding_that_is_not_stated_ends_at_a_slice(
    changes: dict[str, Any], degrees: tuple[int, int]
) -> None:
    """Slices of a torus are replicas unless told otherwise."""
    cluster = {"chip": "tpu-v6e", "num_chips": 1024, "fabric": None, "scaleup_domain": 256}
    training = {"data_parallel_kind": None, "dp": None, "pp": 1, **changes}
    layout = published.read(
        row(stack="maxtext", cluster=cluster, training=training), YEAR
    ).alternatives[0]
    assert (layout.dp_replicate, layout.dp_shard) == degrees


@pytest.mark.parametrize(
    ("kind", "stage", "shards"),
    [
        ("ddp", 0, 1),
        ("zero2", 2, 8),
        ("hsdp (fsdp in slice, dp across slices)", 3, 8),
        ("dp2 x fsdp4 over jax devices", 3, 4),
    ],
)
def test_a_stated_kind_of_sharding_is_not_assumed(kind: str, stage: int, shards: int) -> None:
    training = {"tp": 1, "dp": None, "data_parallel_kind": kind}
    run = published.read(row(training=training), YEAR)
    layout = run.alternatives[0]
    assert (layout.zero_stage, layout.dp_shard) == (stage, shards)
    assert "data_parallel_kind" not in run.assumed


def test_an_unknown_kind_of_sharding_is_read_as_an_unstated_one() -> None:
    """It has been read as ZeRO 3, whatever it was."""
    unknown, unstated = (
        published.read(row(training={"data_parallel_kind": kind}), YEAR)
        for kind in ("mics over 16 devices", None)
    )
    assert unknown == unstated
    assert "data_parallel_kind" in unknown.assumed


def test_experts_on_more_than_a_slice_are_sharded_over_all() -> None:
    moe = {"num_experts": 128, "experts_per_token": 2, "moe_intermediate_size": 2048}
    training = {"data_parallel_kind": None, "dp": None, "pp": 1, "tp": 4, "ep": 128}
    cluster = {"chip": "tpu-v6e", "num_chips": 1024, "fabric": None, "scaleup_domain": 256}
    run = published.read(
        row(stack="maxtext", cluster=cluster, model={"moe": moe}, training=training), YEAR
    )
    assert (run.alternatives[0].dp_replicate, run.alternatives[0].dp_shard) == (1, 256)


@pytest.mark.parametrize(
    ("fabric", "domain", "slices"),
    [
        ("ICI 3D torus per slice, 2 slices over DCN", 512, 2),
        ("ICI 3D torus 8x8x8 per slice", None, 2),
        ("ICI 3D torus", 1024, 1),
        ("ICI 3D torus", None, 1),
        ("ICI 3D torus", 300, 1),  # no number of slices
    ],
)
def test_slices_of_a_torus_are_those_that_a_row_prints(
    fabric: str, domain: int | None, slices: int
) -> None:
    cluster = {"chip": "tpu-v5p", "num_chips": 1024, "fabric": fabric, "scaleup_domain": domain}
    run = published.read(row(stack="maxtext", cluster=cluster, training={"dp": None}), YEAR)
    assert run.problem.cluster.num_devices // run.problem.cluster.scale_up_domain == slices


@pytest.mark.parametrize(
    ("switches", "field", "expected"),
    [
        ({"dispatcher": "allgather"}, "dispatcher", "allgather"),
        ({"dispatcher": "hybridep"}, "dispatcher", "deduplicated"),
        ({"moe_overlap": True}, "overlap_expert", True),
        ({"mc2": True}, "overlap_tensor", True),
        ({"tp_comm_overlap": False}, "overlap_tensor", False),
        ({"gradient_bucketing": False}, "overlap_data", False),
        ({"overlap_grad_reduce": True}, "overlap_data", True),
        ({"attention": "flash-1"}, "attention_kernel", "flash1"),
        ({"cuda_graphs": "none"}, "moe_graphs", "none"),
        ({"cuda_graphs": "partial"}, "moe_graphs", "partial"),
        ({"cuda_graphs": "full"}, "moe_graphs", "full"),
        ({"grouped_gemm": "cutedsl_fused"}, "experts_at_once", True),
        ({"grouped_gemm": False}, "experts_at_once", False),
        ({"reduce_dtype": "bf16"}, "reduce_bytes", 2.0),
        ({"fp8_param_gather": True}, "gather_bytes", 0),
    ],
)
def test_switches_are_fields_of_the_stack(
    switches: dict[str, Any], field: str, expected: Any
) -> None:
    run = published.read(row(training={"switches": switches}), YEAR)
    assert getattr(run.problem.stack, field) == expected


@pytest.mark.parametrize(("organisation", "overlaps"), [("nvidia", True), ("kaist", False)])
def test_what_few_set_is_on_in_recipes_of_the_makers_alone(
    organisation: str, overlaps: bool
) -> None:
    own = {**row()["source"], "organisation": organisation}
    stack = published.read(row(source=own), YEAR).problem.stack
    assert (stack.overlap_tensor, stack.overlap_data) == (overlaps, overlaps)
    stated = {"switches": {"tp_comm_overlap": True}}
    assert published.read(row(source=own, training=stated), YEAR).problem.stack.overlap_tensor


def test_words_of_a_switch_that_say_nothing_more_change_nothing() -> None:
    plain = published.read(row(), YEAR).problem.stack
    for switches in ({"attention": "flash"}, {"loss_kind": "fused"}, {"fp8_recipe": "mxfp8"}):
        assert published.read(row(training={"switches": switches}), YEAR).problem.stack == plain


@pytest.mark.parametrize(
    ("word", "kernel"), [("flash", "pytorch"), ("flash-3", "auto"), ("flash-4", "auto")]
)
@pytest.mark.parametrize("name", ["megatron-deepspeed", "deepspeed", "fsdp"])
def test_a_flash_kernel_takes_the_place_of_one_that_the_framework_has_by_itself(
    name: str, word: str, kernel: str
) -> None:
    assert published.read(row(stack=name), YEAR).problem.stack.attention_kernel != "auto"
    stated = row(stack=name, training={"switches": {"attention": word}})
    assert published.read(stated, YEAR).problem.stack.attention_kernel == kernel


def test_fsdp_with_transformer_engine_has_its_kernels() -> None:
    stated = row(stack="fsdp", software={"kernel_library": "transformer_engine"})
    stack = published.read(stated, YEAR).problem.stack
    assert (stack.attention_kernel, stack.fused_norm) == ("auto", True)


@pytest.mark.parametrize(
    ("switches", "at_once"),
    [
        ({"dispatcher": "deepep"}, True),
        ({"dispatcher": "deepep", "grouped_gemm": False}, False),
        ({"dispatcher": "alltoall"}, False),
    ],
)
def test_tokens_that_deepep_dispatched_are_computed_by_all_experts_at_once(
    switches: dict[str, Any], at_once: bool
) -> None:
    stated = row(stack="fms-fsdp", training={"switches": switches})
    assert published.read(stated, YEAR).problem.stack.experts_at_once == at_once


def test_a_row_without_a_vocabulary_is_refused_by_name() -> None:
    model = {**row()["model"], "vocab_size": None}
    with pytest.raises(Invalid, match=r"model\.vocab_size"):
        published.read({**row(), "model": model}, YEAR)


def test_an_extent_of_graphs_that_nobody_knows_is_refused() -> None:
    with pytest.raises(Invalid, match="cuda_graphs"):
        published.read(row(training={"switches": {"cuda_graphs": "mostly"}}), YEAR)


def test_routing_and_capacity_are_taken_where_they_are_stated() -> None:
    padded = {"switches": {"routing": "capacity", "capacity_factor": 1.25}}
    workload = published.read(row(training=padded), YEAR).problem.workload
    assert (workload.routing, workload.capacity_factor) == ("balanced", 1.25)
    unstated = {"switches": {"routing": "capacity"}}
    assert published.read(row(training=unstated), YEAR).problem.workload.capacity_factor == 1.0
    natural = {"switches": {"routing": "natural"}}
    assert published.read(row(training=natural), YEAR).problem.workload.routing == "natural"


@pytest.mark.parametrize(
    ("stated", "kind"),
    [(None, "reserved"), ("allocated", "allocated"), ("nvidia_smi", "needed")],
)
def test_a_peak_counts_what_its_source_says(stated: str | None, kind: str) -> None:
    run = published.read(row(measured={"memory_gb": 50, "memory_kind": stated}), YEAR)
    assert run.memory_kind == kind


def test_a_framework_that_drives_fsdp_itself_is_fsdp() -> None:
    software = {"framework": "a loop of our own", "backend": "fsdp2"}
    assert (
        published.read(
            {**row(), "stack": "torchtitan", "software": software}, YEAR
        ).problem.stack.id
        == "fsdp"
    )


@pytest.mark.parametrize(
    "training",
    [
        {"pp": 2, "pp_schedule": "v-half"},
        {"pp": 2, "pp_schedule": "1f1b", "schedule_variant": "fb-overlap"},
        {"switches": {"packed_experts": True}},
    ],
)
def test_a_technique_that_the_models_lack_is_refused_by_name(training: dict[str, Any]) -> None:
    stated = training.get("schedule_variant") or training.get("pp_schedule") or "packed_experts"
    with pytest.raises(Invalid, match=stated):
        published.read(row(training=training), YEAR)


@pytest.mark.parametrize(
    ("changes", "known"),
    [
        ({"training": {"pp": 2, "pp_schedule": "zb-h2"}}, False),
        ({"training": {"pp": 2, "pp_schedule": "zb-h1"}}, True),
        ({"outcome": "failed"}, False),
    ],
)
def test_a_peak_that_says_nothing_of_what_a_step_needs_is_left_out(
    changes: dict[str, Any], known: bool
) -> None:
    run = published.read(row(measured={"memory_gb": 50}, **changes), YEAR)
    assert (run.memory_bytes is not None) is known
