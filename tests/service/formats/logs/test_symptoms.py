"""What a log itself says makes a run slow."""

from __future__ import annotations

import pytest

from service.formats.logs.symptoms import symptoms


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("allocator_retries", "[titan] - root - WARNING - 3 CUDA memory allocation retries."),
        (
            "allocator_retries",
            "[WARNING] [stage3.py:2150:step] 2 pytorch allocator cache flushes since last step.",
        ),
        ("sockets", "node1:77:77 [0] NCCL INFO Using network Socket"),
        ("network_faults", "n1:7:9 [3] NCCL WARN NET/IB : Got completion from peer with status=12"),
        ("network_faults", "n1:7:9 [3] NCCL WARN NET/IB : mlx5_0:1 Got async event : port error"),
        ("network_warnings", "node1:77:90 [3] misc/socket.cc:50 NCCL WARN socketProgress: closed"),
        (
            "collective_timeouts",
            "[E NCCL.cpp] Watchdog caught collective operation timeout",
        ),
        ("device_faults", "[ 88.1] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."),
        ("device_faults", "RuntimeError: CUDA error: uncorrectable ECC error encountered"),
        ("throttling", "    HW Thermal Slowdown : Active"),
        ("throttling", "GPU 2: clocks throttled for power"),
        ("stragglers", "STRAGGLER DETECTION WARNING: Some GPUs have worse relative performance"),
        ("stragglers", "[monitor] slow nodes: node07"),
        (
            "data_waits",
            "The 'train_dataloader' does not have many workers",
        ),
        ("data_waits", "rank 3: waiting for data (2.1 s)"),
        ("profiling", "WARNING: Device-side CUDA Event completion trace is currently enabled."),
    ],
)
def test_a_symptom_is_counted_and_its_first_line_quoted(kind: str, line: str) -> None:
    (found,) = symptoms(f"step: 1\n{line}\nstep: 2\n{line}\n")
    assert (found.kind, found.count, found.line) == (kind, 2, 2)
    assert found.text == line.strip()[:200]


def test_arguments_and_steps_are_no_symptoms() -> None:
    log = """
      log_straggler ................................... False
      disable_straggler_on_startup .................... False
        HW Slowdown                       : Not Active
        Uncorrectable ECC errors          : 0
    NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE
      dataloader_type ................................. cyclic
    rank 3: waiting for data-parallel peers
    step: 10 loss: 7.0 memory: 48.91GiB(51.52%) tps: 7,034
    """
    assert symptoms(log) == []


def test_a_line_of_megabytes_is_cut() -> None:
    (found,) = symptoms("x" * 5_000_000 + " NCCL WARN " + "y" * 5_000_000)
    assert len(found.text) <= 200
