"""Lines of Megatron-LM and its forks."""

from __future__ import annotations

import pytest

from service.formats import logs
from tests.service.formats.logs.dialects import DEEPSEEK, LLAMA, dump, maxtext, megatron, text


def test_megatron_times_are_milliseconds_and_the_interval_of_iteration_one_is_warm_up() -> None:
    reading = logs.read(text(megatron(10 * k, 4000.0 + (k == 1) * 300) for k in range(1, 6)))
    assert (reading.framework, reading.unit, reading.value) == ("megatron", "step_time_s", 4.0)
    assert (reading.steps_found, reading.steps_used, reading.left_out) == (5, 4, {"warm_up": 1})


@pytest.mark.parametrize(
    ("printed", "seconds"),
    [("(ms): 387.8/397.1 |", 0.3878), ("(s): 105.37 |", 105.37), ("(ms): 6046.6", 6.0466)],
)
def test_the_forks_of_megatron_are_read(printed: str, seconds: float) -> None:
    assert logs.read(
        f"iteration 30/ 1000 | elapsed time per iteration {printed}\n"
    ).value == pytest.approx(seconds)


def test_megatron_memory_is_the_largest_reserved() -> None:
    memory = (
        "[Rank {}] (after 2 iterations) memory (MB) | allocated: 1.0 | max allocated: {} |"
        " reserved: 2.0 | "
    )
    lines = [
        memory.format(0, 20480.5),
        memory.format(0, 51200.0) + "max reserved: 61440.0",
        megatron(100, 4000.0),
    ]
    reading = logs.read(text([*lines, memory.format(8, 71680.0) + "max reserved: 30720.0"]))
    assert (reading.memory_gib, reading.memory_kind) == (60.0, "reserved")
    assert logs.read(text([lines[0], lines[2]])).memory_kind == "allocated"


def test_the_dump_is_read_as_printed_and_only_from_between_its_rulers() -> None:
    before, after = "  hidden_size ....... 1\n", "  num_layers ....... 1\n"
    printed = dump(**LLAMA).replace("\n", "\r\n").replace("  num_layers", "[rank0]:  num_layers")
    reading = logs.read(before + printed + after + text([megatron(100, 4000.0)]))
    assert reading.arguments == {name: str(value) for name, value in LLAMA.items()}
    assert logs.read(dump(**LLAMA) + text([maxtext(9, 5.6)])).arguments == {}


def test_a_vocabulary_that_is_padded_after_the_dump_is_added() -> None:
    padded = " > padded vocab (size: 50257) with 943 dummy tokens (new size: 51200)\n"
    lines = padded + text([megatron(100, 4000.0)])
    assert logs.read(dump(**LLAMA) + lines).arguments["padded_vocab_size"] == "51200"
    assert logs.read(dump(**DEEPSEEK) + lines).arguments["padded_vocab_size"] == "129280"
    assert logs.read(lines).arguments == {}


@pytest.mark.parametrize(
    ("printed", "gib", "share"),
    [
        ("memory(GiB): 47.25", 47.25, None),
        ("hip mem usage/free/total/usage_ratio: 141.22GB/50.76GB/191.98GB/73.56%", 141.22, None),
        ("rocm mem usage/free/total/usage_ratio: 141.22GiB/50.76GiB/191.98GiB/73%", 141.22, None),
        ("mem usages: 0.7356", None, 0.7356),
        ("mem usages: 73.56%", None, 0.7356),
    ],
)
def test_memory_that_forks_print_in_their_steps_is_kept(
    printed: str, gib: float | None, share: float | None
) -> None:
    line = megatron(2, 4000.0).replace("| learning rate", f"| {printed} | learning rate")
    reading = logs.read(text([line]))
    assert reading.memory_gib == gib
    assert reading.used_memory_share == (None if share is None else pytest.approx(share))
