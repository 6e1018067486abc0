"""How a run ended, as its log tells."""

from __future__ import annotations

import pytest

from service.formats.logs.contents import LogContents, read_contents
from tests.service.formats.logs.dialects import megatron, text

OUT_OF_MEMORY = (
    "\nTraceback (most recent call last):\n"
    '  File "/workspace/train.py", line 212, in <module>\n    trainer.train()\n'
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.83 GiB.\n"
)


def contents(log: str) -> LogContents:
    return read_contents(log, None, None)


def bars(first: int, last: int) -> str:
    return "".join(
        f"\r {step}%|#         | {step}/100 [{step * 5 // 60:02d}:{step * 5 % 60:02d}<08:00,"
        "  5.00s/it]"
        for step in range(first, last + 1)
    )


@pytest.mark.parametrize("launcher", ["", "\nChildFailedError: rank 0 (exitcode: 1)\n"])
def test_a_bar_that_is_drawn_once_more_as_its_process_ends_is_no_step(launcher: str) -> None:
    log = bars(1, 9) + OUT_OF_MEMORY + "\n" + bars(9, 9) + launcher
    assert contents(log).ends_out_of_memory
    assert contents(log).trouble.ends_in_crash


@pytest.mark.parametrize("following", [bars(10, 10), bars(9, 10), bars(1, 9)])
def test_a_run_that_printed_other_steps_after_a_failure_went_on(following: str) -> None:
    log = bars(1, 9) + OUT_OF_MEMORY + following
    assert not contents(log).ends_out_of_memory
    assert not contents(log).trouble.ends_in_crash


def test_a_step_that_a_restart_repeats_is_one_if_another_follows() -> None:
    steps = [megatron(step, 4000.0) for step in range(2, 6)]
    log = text(steps) + OUT_OF_MEMORY + text([*steps[-1:], megatron(6, 4000.0)])
    assert not contents(log).ends_out_of_memory
