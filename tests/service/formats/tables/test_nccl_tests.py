"""nccl-tests tables: what the columns say, and what is no measurement."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.calibration.microbenchmarks import Operation
from models.errors import Invalid
from service.formats.tables.nccl_tests import read
from tests.paths import SHARED

SAMPLE = SHARED / "training_logs" / "nccl-tests-all-reduce-8xh100.txt"
EXPECTATIONS = sorted((SHARED / "cases" / "bench").glob("*.expected.json"))
HEAD = """# nThread 1 nGpus 1 minBytes 8
#  Rank  0 Group  0 Pid 1 on node-0 device  0 [0000:19:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid 2 on node-0 device  1 [0000:2d:00] NVIDIA H100 80GB HBM3
#       size         count      type   redop    root     time   algbw   busbw #wrong \
    time   algbw   busbw #wrong
"""
HEAD_WITHOUT_RANKS = HEAD[HEAD.index("#       size") :]
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


def test_the_faster_placement_counts() -> None:
    found = read(HEAD + LINE, "all_reduce")
    assert (found.sizes, found.seconds) == ((1073741824.0,), (pytest.approx(4016.4e-6),))


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
        ("/opt/nccl-tests/build/all_reduce_perf_mpi", "all_reduce"),
        ("alltoall_perf_mpi", "all_to_all"),
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
    with pytest.raises(Invalid, match="operation = None: is required"):
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
    with pytest.raises(Invalid, match="1 could not, because results were wrong: #wrong 7 at 1073"):
        read(both, "all_reduce")


SIZES = (1073741824.0, 2147483648.0)
TIMES = (4016.4e-6, 7916.4e-6)
SECOND_LINE = (
    "  2147483648     536870912     float     sum      -1   7929.4  270.83  473.95      0"
    "   7916.4  271.27  474.72      0\n"
)


def prefixed(prefix: str) -> str:
    return "".join(f"{prefix}{line}" for line in (HEAD + LINE + SECOND_LINE).splitlines(True))


@pytest.mark.parametrize(
    "prefix",
    [
        "[1,0]<stdout>:",
        "[1,0]<stdout>: ",
        "0: ",
        " 12: ",
        "[pod/nccl-launcher-abc12/main] ",
        "nccl-launcher-0 ",
        "nccl-1  | ",
        "2025-03-04T10:11:12.000000000Z ",
        "2025-03-04 10:11:12,123 INFO ",
        "[2025-03-04 10:11:12] 0: ",
        "\x1b[36mnccl-0\x1b[0m ",
    ],
)
def test_what_launchers_put_before_lines_is_passed_over(prefix: str) -> None:
    found = read(prefixed(prefix), "all_reduce")
    assert (found.sizes, found.unread) == (SIZES, 0)
    assert found.seconds == pytest.approx(TIMES)
    assert found.devices == ("NVIDIA H100 80GB HBM3",)


def test_a_tag_may_touch_the_size() -> None:
    line = LINE.strip().replace("1073741824", "137438953472")
    found = read(f"{HEAD}[1,0]<stdout>:{line}", "all_reduce")
    assert found.sizes == (137438953472.0,)


@pytest.mark.parametrize("header_end", ["", "  timestamp"])
@pytest.mark.parametrize("row_end", ["2026-07-09 12:00:01", "2026-07-09T12:00:01Z", "1783598401"])
def test_rows_may_end_with_a_time_of_day(header_end: str, row_end: str) -> None:
    head = HEAD.rstrip() + header_end + "\n"
    found = read(f"{head}{LINE.rstrip()}   {row_end}\n", "all_reduce")
    assert found.seconds == pytest.approx(TIMES[:1])


OLD_HEAD = "#  size  count  type  redop  time  algbw  busbw  error  time  algbw  busbw  error\n"


def test_a_column_of_errors_is_held_against_what_the_type_allows() -> None:
    text = (
        OLD_HEAD
        + "  512  128  float  sum  30.63  0.02  0.03  1e-07  30.83  0.02  0.03  1e-07\n"
        + "  1024  256  float  sum  31.25  0.03  0.06  4e-07  16.80  0.06  0.11  2e-03\n"
        + "  2048  1024  half  sum  32.25  0.06  0.11  4e-03  31.80  0.06  0.11  2e-03\n"
        + "  4096  1024  int32  sum  33.25  0.12  0.22  1e+00  33.80  0.12  0.22  2e+00\n"
    )
    found = read(text, "all_reduce")
    assert found.sizes == (512, 1024, 2048)
    assert found.seconds == pytest.approx((30.63e-6, 31.25e-6, 31.80e-6))
    assert found.unread == 1


def test_redop_may_be_blank_in_the_rows_of_an_all_to_all() -> None:
    line = "  268435456  1048576  float     520935  0.52  0.51  0e+00  519562  0.52  0.51  1e+00\n"
    found = read(OLD_HEAD + line, "all_to_all")
    assert found.seconds == pytest.approx((0.520935,))


def test_the_columns_of_the_first_releases_are_known_by_their_names() -> None:
    text = (
        "#  bytes  N  type  op  time  algbw  busbw  res  time  algbw  busbw  res\n"
        "  1048576  262144  float  sum  100.5  10.43  18.26  5e-07  90.5  11.59  20.28  5e-07\n"
    )
    assert read(text, "all_reduce").seconds == pytest.approx((90.5e-6,))


def test_columns_that_are_not_available_are_no_measurements() -> None:
    not_checked = LINE.replace("      0   4016.4", "    N/A   4016.4")
    assert read(HEAD + not_checked, "all_reduce").seconds == pytest.approx(TIMES[:1])
    only_one = LINE[:87] + "      N/A     N/A     N/A    N/A\n"
    assert read(HEAD + only_one, "all_reduce").seconds == pytest.approx((4029.4e-6,))


def test_debug_lines_between_rows_are_passed_over_and_one_within_a_row_makes_it_unread() -> None:
    debug = "node-0:1234:1234 [0] NCCL INFO Channel 00/02 : 0 1 2 3 4 5 6 7\n"
    torn = SECOND_LINE[:60] + debug + SECOND_LINE[60:]
    found = read(debug + HEAD + debug + LINE + debug + torn + debug, "all_reduce")
    assert (found.sizes, found.unread) == (SIZES[:1], 1)


@pytest.mark.parametrize(
    "row",
    [
        LINE[:70],  # cut off
        LINE.rstrip() + "   17.3\n",  # a column that the header does not have
        LINE.replace("      -1", ""),  # without the root
    ],
)
def test_a_row_of_other_columns_than_the_header_is_not_guessed_at(row: str) -> None:
    found = read(HEAD + SECOND_LINE + row, "all_reduce")
    assert (found.sizes, found.unread) == (SIZES[1:], 1)


def test_rows_without_a_header_are_those_of_today_whose_bandwidth_fits() -> None:
    assert read(LINE, "all_reduce").seconds == pytest.approx(TIMES[:1])
    with pytest.raises(Invalid, match="the header that names the columns .* is missing"):
        read(LINE.replace("266.48", " 26.64"), "all_reduce")


def test_a_column_that_is_not_known_is_passed_over_by_its_place() -> None:
    head = HEAD.replace("  time  ", "  time  stddev  ")
    line = LINE.replace("4029.4 ", "4029.4 1.5 ").replace("4016.4 ", "4016.4 99.5 ")
    found = read(head.rstrip() + " more\n" + line.rstrip() + " 7.5\n", "all_reduce")
    assert (found.seconds, found.unread, found.ranks) == (pytest.approx(TIMES[:1]), 0, 8)


def test_times_of_the_cpu_are_refused() -> None:
    with pytest.raises(Invalid, match="run it without -C"):
        read(HEAD.replace(" time", " cputime") + LINE, "all_reduce")


@pytest.mark.parametrize(
    ("failure", "says"),
    [
        ("# Out of bounds values : 2 FAILED\n", "Out of bounds values : 2 FAILED"),
        (
            "node-0: Test NCCL failure all_reduce.cu:44 'unhandled system error / '\n",
            "Test NCCL failure all_reduce.cu:44 'unhandled system error",
        ),
        (
            "[1,3]<stdout>:node-0: Test CUDA failure common.cu:892 'out of memory'\n",
            "out of memory",
        ),
        (" .. node-0 pid 77: Test failure common.cu:1005\n", "Test failure common.cu:1005"),
    ],
)
def test_a_run_that_failed_is_refused_and_the_refusal_says_why(failure: str, says: str) -> None:
    with pytest.raises(Invalid, match="is of a run that failed") as refused:
        read(HEAD + LINE + failure, "all_reduce")
    assert says in refused.value.rule


def test_a_run_without_a_row_is_refused_with_its_first_warning() -> None:
    warning = "node-0:1:1 [0] transport/net.cc:38 NCCL WARN Call to connect timed out\n"
    with pytest.raises(Invalid, match="NCCL WARN Call to connect timed out"):
        read(HEAD + warning, "all_reduce")
    assert read(HEAD + warning + LINE, "all_reduce").sizes == SIZES[:1]


def test_of_tables_of_several_collectives_the_one_that_is_asked_for_is_read() -> None:
    text = (
        f"# Collective test starting: all_reduce_perf\n{HEAD}{LINE}"
        "# Collective test concluded: all_reduce_perf\n"
        f"# Collective test starting: reduce_scatter_perf\n{HEAD}{SECOND_LINE}"
    )
    with pytest.raises(Invalid, match=r"names several collectives \(all_reduce, reduce_scatter\)"):
        read(text)
    assert read(text, "all_reduce").sizes == SIZES[:1]
    assert read(text, "reduce_scatter").sizes == SIZES[1:]


def ranks_listed(count: int, head: str = "") -> str:
    lines = (
        f"#  Rank {rank:2} Group  0 Pid 1 on node-0 device {rank} [0x18] NVIDIA H100 80GB HBM3\n"
        for rank in range(count)
    )
    return head + "".join(lines)


@pytest.mark.parametrize(
    ("operation", "busbw", "ranks"),
    [
        ("all_reduce", "466.33", 8),
        ("all_reduce", "522.00", None),  # 49 ranks give 522.09, 48 give 521.86: neither
        ("reduce_scatter", "199.86", 4),
        ("send_recv", "266.48", None),
        ("all_reduce", "0.00", None),
    ],
)
def test_bandwidths_tell_the_number_of_ranks(
    operation: Operation, busbw: str, ranks: int | None
) -> None:
    line = LINE.replace("466.33", busbw).replace("267.34  467.85", "  0.00    0.00")
    assert read(HEAD_WITHOUT_RANKS + line, operation).ranks == ranks


def test_ranks_are_those_listed_unless_the_list_is_not_whole() -> None:
    line = LINE.replace("466.33", "0.00").replace("467.85", "0.00")
    assert read(ranks_listed(4) + HEAD_WITHOUT_RANKS + line, "all_reduce").ranks == 4
    assert read(ranks_listed(4) + HEAD_WITHOUT_RANKS + LINE, "all_reduce").ranks == 8
    cut = ranks_listed(4, "# nThread 1 nGpus 8 minBytes 8\n")
    assert read(cut + HEAD_WITHOUT_RANKS + line, "all_reduce").ranks is None


RESULT = {
    "size": 1073741824,
    "count": 268435456,
    "type": "float",
    "redop": "sum",
    "root": -1,
    "out_of_place": {"time": 4029.4, "alg_bw": 266.48, "bus_bw": 466.33, "nwrong": 0},
    "in_place": {"time": 4016.4, "alg_bw": 267.34, "bus_bw": 467.85, "nwrong": 0},
}
DOCUMENT = {"config": {"test": "all_reduce_perf"}, "results": [RESULT]}


@pytest.mark.parametrize("indent", [None, 2])
def test_json_is_read_like_the_table(indent: int | None) -> None:
    text = "some line\n" + json.dumps(DOCUMENT, indent=indent)
    found = read(text)
    assert (found.operation, found.ranks, found.sizes) == ("all_reduce", 8, SIZES[:1])
    assert found.seconds == pytest.approx(TIMES[:1])


def test_json_lists_devices() -> None:
    device = {"rank": 0, "hostname": "node-0", "name": "NVIDIA H100 80GB HBM3"}
    document = {**DOCUMENT, "devices": [{**device, "rank": rank} for rank in range(8)]}
    found = read(json.dumps(document))
    assert (found.ranks, found.devices) == (8, ("NVIDIA H100 80GB HBM3",))


@pytest.mark.parametrize(
    ("document", "rule"),
    [
        ({"config": {}}, "without a list `results`"),
        ({**DOCUMENT, "results": [{"size": 8}]}, r"\(1 could not\)"),
        (
            {
                **DOCUMENT,
                "results": [{**RESULT, "in_place": None, "out_of_place": {"time": 1, "nwrong": 3}}],
            },
            "#wrong 3 at 1073741824 bytes",
        ),
        ({**DOCUMENT, "out_of_bounds": {"count": 2, "okay": False}}, "a run that failed: out_of"),
        ({**DOCUMENT, "results": [{**RESULT, "in_place": {"cpu_time": 3.0}}]}, "without -C"),
    ],
)
def test_json_without_measurements_is_refused(document: object, rule: str) -> None:
    with pytest.raises(Invalid, match=rule):
        read(json.dumps(document), "all_reduce")


def test_json_that_is_cut_off_is_refused() -> None:
    with pytest.raises(Invalid, match="send the file whole"):
        read(json.dumps(DOCUMENT)[:-3])


@pytest.mark.parametrize("expectation", EXPECTATIONS, ids=lambda path: path.name.split(".exp")[0])
def test_outputs_of_many_launchers_and_releases_are_read(expectation: Path) -> None:
    expected = json.loads(expectation.read_text())
    text = Path(str(expectation).replace(".expected.json", ".txt")).read_text()
    operation = expected["request_beside_nccl_tests"].get("operation")
    points = expected["expected_points"]
    if isinstance(points, str):
        with pytest.raises(Invalid, match="#wrong 12"):
            read(text, operation)
        return
    found = read(text, operation)
    assert list(found.sizes) == [size for size, _ in points]
    assert found.seconds == pytest.approx([seconds for _, seconds in points])


@pytest.mark.parametrize("text", ["", "nothing\n", HEAD, "\x00\x01", "1 2 3\n", "x" * 10_000_000])
def test_what_is_no_table_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="nccl_tests"):
        read(text, "all_reduce")


@given(st.text())
def test_no_text_breaks_the_reader(text: str) -> None:
    found = read(text + "\n" + LINE, "all_reduce")
    assert 1073741824.0 in found.sizes


def test_rows_that_debug_output_tears_are_blamed_on_it() -> None:
    torn = "\n".join(
        f"n-1:2211:22{k} [0] NCCL INFO {size} Bytes -> Algo 1 proto 2 time 40.1\n"
        f"     {size}      {size // 4}   float   sum   -1n-1:2211:22{k} [0] NCCL INFO comm ready\n"
        " 44.11   1.0   1.8   0"
        for k, size in enumerate((2**20, 2**21, 2**22))
    )
    with pytest.raises(Invalid, match="run it again with NCCL_DEBUG unset"):
        read(torn, "all_reduce")
