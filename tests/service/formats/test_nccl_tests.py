"""nccl-tests tables: what the columns say, and what is no measurement."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.calibration.microbenchmarks import Operation
from models.errors import Invalid
from service.formats.nccl_tests import read
from tests.paths import SHARED

SAMPLE = SHARED / "training_logs" / "nccl-tests-all-reduce-8xh100.txt"
HEAD = """# nThread 1 nGpus 1 minBytes 8
#  Rank  0 Group  0 Pid 1 on node-0 device  0 [0000:19:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid 2 on node-0 device  1 [0000:2d:00] NVIDIA H100 80GB HBM3
#       size         count      type   redop    root     time   algbw   busbw #wrong \
    time   algbw   busbw #wrong
"""
LINE = (
    "  1073741824     268435456     float     sum      -1   4029.4  266.48  466.33      0"
    "   4016.4  267.34  467.85      0\n"
)


@pytest.mark.skipif(
    not SAMPLE.exists(), reason="the sample (shared/training_logs) is not beside the project"
)
def test_the_sample_is_read_whole() -> None:
    found = read(SAMPLE.read_text(), "all_reduce")
    assert found.ranks == 8
    assert found.sizes[-1] == 17179869184
    assert found.seconds[-1] == pytest.approx(62636e-6)
    assert len(found.sizes) == 32
    assert found.unread == 0
    bus = found.sizes[-1] / found.seconds[-1] * 2 * 7 / 8 / 1e9
    assert bus == pytest.approx(479.99, rel=1e-3)  # as the tool prints it


def test_the_faster_placement_counts_and_ranks_are_those_listed() -> None:
    found = read(HEAD + LINE, "all_reduce")
    assert (found.ranks, found.sizes, found.seconds) == (
        2,
        (1073741824.0,),
        (pytest.approx(4016.4e-6),),
    )


def test_one_placement_is_enough() -> None:
    assert read(LINE[:87] + "\n", "all_reduce").seconds == (pytest.approx(4029.4e-6),)


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("all_reduce_perf", "all_reduce"),
        ("all_gather_perf", "all_gather"),
        ("reduce_scatter_perf", "reduce_scatter"),
        ("alltoall_perf", "all_to_all"),
        ("sendrecv_perf", "send_recv"),
    ],
)
def test_newer_output_names_the_collective(name: str, operation: str) -> None:
    line = LINE if "reduce" in name else LINE.replace("sum", "none")
    assert read(f"# Collective test starting: {name}\n{HEAD}{line}").operation == operation


@pytest.mark.parametrize(
    ("head", "operation"),
    [("", "reduce_scatter"), ("all_reduce_perf alltoall_perf\n", "all_reduce")],
)
def test_a_collective_that_is_not_known_is_asked_for(head: str, operation: Operation) -> None:
    with pytest.raises(Invalid, match="operation"):
        read(head + LINE)
    assert read(head + LINE, operation).operation == operation


@pytest.mark.parametrize(
    "name", ["all_reduce_perf", "broadcast_perf", "all_reduce_perf alltoall_perf"]
)
def test_another_collective_than_the_output_names_is_refused(name: str) -> None:
    with pytest.raises(Invalid, match=f"is not what the output names: .*{name[:8]}"):
        read(f"# Collective test starting: {name}\n" + HEAD + LINE, "reduce_scatter")


def test_what_reduces_nothing_has_no_operator() -> None:
    with pytest.raises(Invalid, match="redop sum"):
        read(LINE, "all_gather")
    assert read(LINE.replace("sum", "none"), "all_gather").operation == "all_gather"


def test_the_devices_are_those_listed_once() -> None:
    assert read(HEAD + LINE, "all_reduce").devices == ("NVIDIA H100 80GB HBM3",)


def test_wrong_results_are_no_measurements() -> None:
    wrong = LINE.replace("      0   4016.4", "      7   4016.4")
    assert read(wrong, "all_reduce").seconds == (pytest.approx(4016.4e-6),)
    both = wrong.replace("467.85      0", "467.85     12")
    found = read(LINE + both, "all_reduce")
    assert (len(found.sizes), found.unread) == (1, 1)
    with pytest.raises(Invalid, match="1 could not"):
        read(both, "all_reduce")


@pytest.mark.parametrize("text", ["", "nothing\n", HEAD, "\x00\x01", "1 2 3\n", "x" * 10_000_000])
def test_what_is_no_table_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="nccl_tests"):
        read(text, "all_reduce")


@given(st.text())
def test_no_text_breaks_the_reader(text: str) -> None:
    found = read(text + "\n" + LINE, "all_reduce")
    assert 1073741824.0 in found.sizes
