"""How a run ended, as its log tells."""

from __future__ import annotations

import pytest

from service.formats.logs.contents import LogContents, read_contents
from tests.service.formats.logs.dialects import bar as nemo_bar
from tests.service.formats.logs.dialects import megatron, text


def crash(error: str, *functions: str) -> str:
    """A traceback through functions."""
    frames = "".join(
        f'  File "/opt/train.py", line {line}, in {function}\n    call()\n'
        for line, function in enumerate(functions, 40)
    )
    return f"\nTraceback (most recent call last):\n{frames}{error}\n"


MEMORY_ERROR = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.83 GiB."
OUT_OF_MEMORY = crash(MEMORY_ERROR, "<module>", "train", "training_step")


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


def test_a_bar_of_nemo_that_is_drawn_once_more_is_no_step() -> None:
    log = "".join(f"\r{nemo_bar(step, 4.0, None)}" for step in range(1, 6))
    assert contents(f"{log}{OUT_OF_MEMORY}\r{nemo_bar(5, 4.0, None)}").ends_out_of_memory


def test_a_step_that_a_restart_repeats_is_one_if_another_follows() -> None:
    steps = [megatron(step, 4000.0) for step in range(2, 6)]
    log = text(steps) + OUT_OF_MEMORY + text([*steps[-1:], megatron(6, 4000.0)])
    assert not contents(log).ends_out_of_memory


@pytest.mark.parametrize(
    "functions",
    [
        ("_inner_training_loop", "_maybe_log_save_evaluate", "evaluate", "evaluation_loop"),
        ("train", "evaluate_and_print_results", "forward_step"),
        ("fit", "_run_validation", "forward"),
        ("main", "eval_step"),
        ("run", "validation_step"),
    ],
)
@pytest.mark.parametrize("rank", ["", "[rank0]: "])
def test_an_evaluation_that_ran_out_after_steps_says_nothing_of_the_layout(
    functions: tuple[str, ...], rank: str
) -> None:
    failure = crash(MEMORY_ERROR, *functions).replace("\n", f"\n{rank}")
    torchrun = crash("ChildFailedError: exitcode: 1", "<module>", "launch_agent")
    trouble = contents(bars(1, 9) + failure + torchrun).trouble
    assert trouble.out_of_memory_cause == "evaluation"
    assert contents(failure).trouble.out_of_memory_cause is None  # as no step came before it
    went_on = contents(bars(1, 9) + failure + bars(10, 20))
    assert went_on.trouble.out_of_memory_cause is None


@pytest.mark.parametrize(
    "functions",
    [
        ("train", "training_step"),
        ("_inner_training_loop", "_maybe_log_save_evaluate", "_save_checkpoint"),
        ("train_valid_test_datasets_provider",),
    ],
)
def test_a_training_that_ran_out_may_be_the_layouts_fault(functions: tuple[str, ...]) -> None:
    ended = contents(bars(1, 9) + crash(MEMORY_ERROR, *functions))
    assert ended.ends_out_of_memory
    assert ended.trouble.out_of_memory_cause is None


def test_memory_that_other_processes_held_says_nothing_of_the_layout() -> None:
    error = (
        f"{MEMORY_ERROR} GPU 0 has a total capacity of 79.11 GiB of which 1.07 GiB is free. Process"
        " 4711 has 60.50 GiB memory in use. Including non-PyTorch memory, this process has 17.50"
        " GiB memory in use. Of the allocated memory 16.25 GiB is allocated by PyTorch"
    )
    assert contents(crash(error)).trouble.out_of_memory_cause == "other_processes"


STEPS = text([megatron(step, 4000.0) for step in range(2, 9)])
SLURM = "slurmstepd: error: *** JOB 81 ON node1 CANCELLED AT 2025-05-01T16:00:12"
LIMIT = f"{SLURM} DUE TO TIME LIMIT ***\n"
CANCELLED = f"{SLURM} ***\n"
EXIT = "srun: error: node1: task 3: Exited with exit code 1\n"
LOST_PEER = crash(
    "torch.distributed.DistBackendError: NCCL error: Connection reset by peer", "step"
)
NO_FILE = crash("FileNotFoundError: [Errno 2] No such file or directory: '/data/7.bin'", "main")


@pytest.mark.parametrize(
    "end",
    [
        LIMIT,
        LIMIT + CANCELLED + "srun: Job step aborted: Waiting up to 32 seconds for job step.\n",
        LIMIT.replace("TIME LIMIT", "PREEMPTION"),
        CANCELLED + "srun: error: node1: task 0: Terminated\n",
        crash("KeyboardInterrupt", "<module>", "train"),
        crash("KeyboardInterrupt", "train").replace("\n", "\n[rank0]: ") + LOST_PEER,
        "=>> PBS: job killed: walltime 3612 exceeded limit 3600\n" + LOST_PEER,
        "[after training is done] datetime: 2025-05-01 12:40:01\n" + EXIT,
        "{'train_runtime': 302.5, 'train_loss': 1.2, 'epoch': 1.0}\n" + LOST_PEER,
        "[titan] 2025-06-04 08:52:21,904 - root - INFO - Training completed\n" + EXIT,
    ],
)
def test_a_run_that_was_stopped_or_had_trained_to_its_end_did_not_crash(end: str) -> None:
    assert not contents(STEPS + end).trouble.ends_in_crash


@pytest.mark.parametrize(
    "end",
    [
        NO_FILE + CANCELLED,  # Slurm cancels the other tasks of a step
        EXIT,
        "srun: error: node1: task 3: Segmentation fault (core dumped)\n" + CANCELLED,
        LIMIT.replace("TIME LIMIT", "NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS"),
        LOST_PEER + LIMIT,
    ],
)
def test_a_run_that_failed_before_it_was_stopped_crashed(end: str) -> None:
    assert contents(STEPS + end).trouble.ends_in_crash


@pytest.mark.parametrize("rank", ["", "[rank0]: ", "3: "])
def test_an_exception_that_python_ignores_in_a_clean_up_is_no_crash(rank: str) -> None:
    ignored = "Exception ignored in: <function Reader.__del__ at 0x7f>" + crash(
        "OSError: [Errno 9] Bad file descriptor", "__del__"
    )
    ignored = "".join(f"{rank}{line}\n" for line in ignored.splitlines())
    assert not contents(STEPS + ignored).trouble.ends_in_crash
    ended = contents(STEPS + ignored + NO_FILE)
    assert ended.trouble.ends_in_crash
    assert str(ended.trouble.last_error).startswith("FileNotFoundError")


def test_the_error_that_ended_a_run_goes_before_one_that_it_survived() -> None:
    survived = crash("ValueError: an image that cannot be read", "load")
    assert contents(survived + STEPS + "Segmentation fault\n").trouble.last_error == (
        "Segmentation fault"
    )
    assert contents(survived + STEPS).trouble.last_error == (
        "ValueError: an image that cannot be read"
    )
