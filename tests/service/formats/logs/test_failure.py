"""The last words of a run that failed."""

from __future__ import annotations

import pytest

from service.formats.logs.failure import last_error

TORCHRUN = """
[rank3]: Traceback (most recent call last):
[rank3]:   File "pretrain_gpt.py", line 300, in <module>
[rank3]:     pretrain(train_valid_test_datasets_provider)
[rank3]: {error}
E0129 10:15:32.145 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1)
Traceback (most recent call last):
  File "/usr/local/bin/torchrun", line 8, in <module>
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
"""


@pytest.mark.parametrize(
    "error",
    [
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/tokens.idx'",
        "AssertionError: number of layers must be divisible by the pipeline size",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.96 GiB.",
        "KeyError: 'lm_head.weight'",
        "jaxlib.xla_extension.XlaRuntimeError: INTERNAL: something",
        "AssertionError",
    ],
)
def test_the_error_of_the_run_goes_before_that_of_its_launcher(error: str) -> None:
    assert last_error(TORCHRUN.format(error=error)) == error


def test_the_last_exception_counts() -> None:
    assert (
        last_error("ValueError: first\nsomething\nRuntimeError: second\n") == "RuntimeError: second"
    )


@pytest.mark.parametrize(
    "lost",
    [
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2251, remote"
        " process exited or there was a network error, NCCL version 2.21.5",
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection closed by"
        " peer [10.0.0.2]:21321",
        "RuntimeError: NCCL communicator was aborted on rank 0.",
        "BrokenPipeError: [Errno 32] Broken pipe",
    ],
)
def test_the_error_of_a_process_goes_before_those_of_its_peers(lost: str) -> None:
    cause = "FileNotFoundError: [Errno 2] No such file or directory: '/data/shard_0042.bin'"
    for log in (f"[rank2]: {cause}\n[rank0]: {lost}\n", f"{lost}\n{cause}\n{lost}\n"):
        assert last_error(f"{log}srun: error: node1: task 0: Exited with exit code 1\n") == cause
    assert last_error(f"[rank0]: {lost}\n") == lost


def test_what_is_not_of_python_is_quoted_too() -> None:
    log = "step: 1\nsrun: error: node17: task 3: Segmentation fault (core dumped)\n"
    assert last_error(log) == ("srun: error: node17: task 3: Segmentation fault (core dumped)")
    assert last_error("step: 1 loss: 2.0\nErrors were: none\n") is None


def test_a_quote_is_short_and_has_no_control_characters() -> None:
    log = "\x1b[31mRuntimeError: bad\x07\x00 " + "x" * 5000 + "\x1b[0m\n"
    quote = last_error(log)
    assert quote is not None
    assert quote.isprintable()
    assert quote.startswith("RuntimeError: bad x")
    assert len(quote) <= 301


def test_a_launcher_is_quoted_where_nobody_else_spoke() -> None:
    log = TORCHRUN.format(error="")
    assert str(last_error(log)).endswith("ChildFailedError:")


def test_a_quoted_error_has_no_secrets() -> None:
    error = "wandb.errors.CommError: api_key=0123abcd of https://me:pass@host is refused"
    expected = "wandb.errors.CommError: api_key=REDACTED of https://me:REDACTED@host is refused"
    assert last_error(error) == expected
