"""What a stack could do, and when."""

from __future__ import annotations

from dataclasses import replace

import pytest

from models.errors import Invalid
from models.spec import catalogue
from models.spec.switches import as_of
from tests.models.cost.examples import on_stack, question


@pytest.mark.parametrize(
    ("stack", "generation", "kernel"),
    [
        ("torchtitan", "hopper", "cudnn"),
        ("torchtitan", "blackwell", "cudnn"),
        ("fsdp", "hopper", "flash2"),
        ("megatron", "hopper", "cudnn"),
        ("megatron", "cdna3", "flash2"),
        ("maxtext", "tpu", "splash"),
        ("nanotron", "blackwell", "flash2"),
        ("llm-foundry", "ampere", "flash1"),
        ("llm-foundry", "hopper", "flash2"),
    ],
)
def test_a_stack_or_pytorch_picks_the_attention_kernel(
    stack: str, generation: str, kernel: str
) -> None:
    assert catalogue.stack(stack).kernel_on(generation) == kernel


@pytest.mark.parametrize(
    ("kernel", "chip", "runs"),
    [("splash", "h100", False), ("cudnn", "v5p", False), ("flash2", "v5p", False), ("flash3",
     "a100", False),
     ("cudnn", "mi300x", False), ("splash", "trn2", False), ("flash3", "gaudi3", False),
     ("flash3", "h100", True), ("flash2", "mi300x", True), ("cudnn", "b200", True), ("unfused",
     "v5p", True)],
)  # fmt: skip
def test_an_attention_kernel_runs_on_the_chips_that_it_is_written_for(
    kernel: str, chip: str, runs: bool
) -> None:
    base = question(model="llama-3-8b", chips=64)
    cluster = catalogue.cluster(chip, 64)
    if runs:
        problem = replace(on_stack("generic", base, attention_kernel=kernel), cluster=cluster)
        assert problem.attention_kernel == kernel
    else:
        with pytest.raises(Invalid, match=f"stack.attention_kernel.*{kernel}"):
            replace(
                base,
                cluster=cluster,
                stack=replace(catalogue.stack("generic"), attention_kernel=kernel),
            )


def test_torchtitan_is_what_it_was_at_the_time() -> None:
    """Of its releases 0.2.0 brought cuDNN's attention, 0.2.1 stages without all logits, 0.3.0 a
    loss in parts."""
    ever = catalogue.stack("torchtitan")
    then = {year: as_of(ever, year) for year in (2025.0, 2025.85, 2026.0, 2026.75)}
    assert [stack.kernel_on("hopper") for stack in then.values()] == [
        "flash2",
        "cudnn",
        "cudnn",
        "cudnn",
    ]
    assert [stack.keeps_logits for stack in then.values()] == [True, True, False, False]
    assert [stack.loss_chunks for stack in then.values()] == [1, 1, 1, 8]
