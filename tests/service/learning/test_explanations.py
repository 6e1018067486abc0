"""Why a run was slow, or died, and what to try: from figures, from logs and from launch
configurations."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.paths import SHARED
from tests.service.asking import PREDICTION, QUESTION, assert_problem, candidate, without
from tests.service.learning.test_report_logs import CLUSTER, MEGATRON, NEMO, TITAN

ADDRESS = "/v1/explanations"
LOGS = SHARED / "training_logs"
CASES = SHARED / "cases" / "logs"
needs_logs = pytest.mark.skipif(not LOGS.exists(), reason="shared/training_logs is not there")
needs_cases = pytest.mark.skipif(not CASES.exists(), reason="shared/cases/logs is not there")
MOST_BYTES = 15_000
SLOW = {**PREDICTION, "measured": {"step_time_s": 3.1}}
USUAL = {**PREDICTION, "measured": {"step_time_s": 2.3}}
LARGE = {**QUESTION, "model": "llama-3-70b"}
TOO_LARGE = {"dp_shard": 64, "zero_stage": 3, "recompute": "none"}
ARGUMENTS = MEGATRON.split(" iteration ")[0]
OUT_OF_MEMORY = (
    "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a"
    " total capacity of 79.11 GiB of which 1.07 GiB is free. Process 4711 has 20.50 GiB memory in"
    " use. Including non-PyTorch memory, this process has 57.50 GiB memory in use. Of the allocated"
    " memory 40.25 GiB is allocated by PyTorch, and 15.50 GiB is reserved by PyTorch but"
    " unallocated.\n"
)


def crash(error: str) -> str:
    return f"Traceback (most recent call last):\n  File train.py, line 3\n[rank3]: {error}\n"


def steps(*seconds: float) -> str:
    return "".join(
        f" iteration {number:8d}/ 1000 | elapsed time per iteration (ms): {1000 * each} | global"
        " batch size: 128 |\n"
        for number, each in enumerate(seconds, 1)
    )


def explained(client: Any, body: dict[str, Any]) -> dict[str, Any]:
    response = client.post(ADDRESS, json=body)
    assert response.status_code == 200, response.text
    assert len(response.content) <= MOST_BYTES
    answer: dict[str, Any] = response.json()
    assert answer["first_fix"][0].isupper()
    assert answer["first_fix"].endswith(".")
    return answer


def codes(answer: dict[str, Any]) -> set[str]:
    return {one["code"] for one in answer["log"]["observations"]}


# -- runs that train
# --------------------------------------------------------------------------------------------------


def test_a_slow_run_is_told_where_its_time_goes_and_what_makes_the_gap(shared_client) -> None:
    answer = explained(shared_client, SLOW)
    speed = answer["speed"]
    assert speed["slower_by"] == pytest.approx(3.1 / speed["predicted_step_time_s"] - 1)
    assert speed["within_interval"] is False
    assert "slower than these chips should be" in speed["summary"]
    seconds = [one["seconds"] for one in answer["where_the_time_goes"]]
    assert seconds == sorted(seconds, reverse=True)
    assert sum(seconds) == pytest.approx(speed["predicted_step_time_s"], rel=0.01)
    gap = answer["gap"]
    assert gap["gap_s"] == pytest.approx(3.1 - speed["predicted_step_time_s"])
    assert gap["term"] == "compute_s"
    assert 0 < gap["probability"] <= 1
    late = f"{speed['slower_by']:.0%}"
    assert answer["first_fix"].startswith(f"Find out why it is {late} slower than predicted")
    assert gap["look_at"] in answer["first_fix"]
    assert answer["failure"] is None
    assert answer["log"] is None


def test_a_switch_that_may_have_been_left_alone_is_suspected(shared_client) -> None:
    suspects = explained(shared_client, SLOW)["gap"]["switches"]
    assert suspects[0]["switch"] == "compile.enable"
    assert "Check compile.enable first" in explained(shared_client, SLOW)["first_fix"]
    stated = {**SLOW, "stack": {"name": "torchtitan", "launch": "compiled", "loss": "pytorch"}}
    found = explained(shared_client, stated)["gap"]["switches"]
    assert "loss" not in {one["field"] for one in found}


def test_a_run_as_fast_as_predicted_has_no_gap_and_still_something_to_try(shared_client) -> None:
    answer = explained(shared_client, USUAL)
    assert answer["gap"] is None
    assert answer["speed"]["within_interval"] is True
    assert "as fast as expected" in answer["speed"]["summary"]
    gains = [one["gain"] for one in answer["what_to_try"] if one["fits"]]
    assert gains == sorted(gains, reverse=True)
    assert gains[0] > 0.01
    assert "more steps an hour" in answer["first_fix"]
    for one in answer["what_to_try"]:
        assert one["saved_s"] == pytest.approx(2.3 * (1 - 1 / (1 + one["gain"])))
        assert one["kind"] in ("layout", "switch", "search")


def test_what_is_to_try_is_predicted_like_any_layout(shared_client) -> None:
    answer = explained(shared_client, USUAL)
    tried = [one for one in answer["what_to_try"] if one["kind"] != "switch"]
    asked = {**QUESTION, "layouts": [one["layout"] for one in tried]}
    predicted = shared_client.post("/v1/predictions", json=asked).json()["layouts"]
    for one, prediction in zip(tried, predicted, strict=True):
        assert one["step_time_s"] == pytest.approx(prediction["step_time_s"])
        assert one["needed_gib"] == pytest.approx(prediction["needed_gib"])


@pytest.mark.parametrize("chip", ["h100", "h200"])
def test_the_best_layout_has_nothing_to_fix_unless_the_run_shows_that_there_is_memory(
    shared_client, chip: str
) -> None:
    question = {**QUESTION, "cluster": {"preset": chip, "num_chips": 64}}
    best = shared_client.post("/v1/recommendations", json=question).json()
    prediction = candidate(best, "fastest")["prediction"]
    measured = {"step_time_s": prediction["step_time_s"]}
    body = {**question, "layout": prediction["layout"], "measured": measured}
    answer = explained(shared_client, body)
    surely = [one for one in answer["what_to_try"] if one["fits"]]
    assert answer["first_fix"].startswith("Nothing to fix: ") == (surely == [])
    for one in answer["what_to_try"]:
        assert one["kind"] == "switch" or one["needed_gib"] > prediction["needed_gib"]


def test_measured_parts_count(shared_client) -> None:
    body = {**SLOW, "parts": {"exposed_communication_s": 0.9}}
    assert "exposed communication, as measured" in explained(shared_client, body)["gap"]["summary"]


def test_a_stored_answer_may_be_named(shared_client) -> None:
    made = shared_client.post("/v1/predictions", json=PREDICTION).json()
    answer = explained(shared_client, {"prediction_id": made["id"], "measured": {"mfu": MFU}})
    assert answer["speed"]["predicted_step_time_s"] == made["layouts"][0]["step_time_s"]


MFU = {"value": 0.3, "attention": "causal"}


def test_nothing_is_stored(client) -> None:
    explained(client, SLOW)
    assert client.get("/v1/reports").json()["items"] == []
    assert client.get("/v1/predictions").json()["items"] == []


def test_a_run_that_breaks_a_rule_and_trained_is_to_be_described_again(shared_client) -> None:
    body = {**QUESTION, "layout": {"dp_shard": 8, "tp": 8, "ep": 4}, "measured": {"mfu": MFU}}
    answer = explained(shared_client, body)
    assert answer["speed"] is None
    assert answer["failure"] is None
    assert answer["first_fix"].startswith("Check the description of the run: it trained")


# -- logs
# --------------------------------------------------------------------------------------------------


def test_a_log_says_what_ran_and_how_fast(shared_client) -> None:
    answer = explained(shared_client, {**CLUSTER, "log": MEGATRON})
    assert answer["speed"]["measured_step_time_s"] == pytest.approx(3.1, rel=0.01)
    assert answer["layout"]["tp"] == 4
    assert answer["log"]["framework"] == "megatron"
    assert answer["log"]["steps_used"] == 4
    assert {"warm_up", "slow_steps"} <= codes(answer)
    assert answer["gap"]["term"] is not None


def test_switches_that_the_log_says_are_not_suspected(shared_client) -> None:
    off = ARGUMENTS.replace(
        "  tensor_model", "  tp_comm_overlap ................. True\n  tensor_model"
    )
    told = explained(shared_client, {**CLUSTER, "log": off + steps(9, *[2.6] * 8)})
    silent = explained(shared_client, {**CLUSTER, "log": ARGUMENTS + steps(9, *[2.6] * 8)})
    assert "overlap_tensor" in {one["field"] for one in silent["gap"]["switches"]}
    assert "overlap_tensor" not in {one["field"] for one in told["gap"]["switches"]}


def test_a_speed_that_fell_for_good_is_the_first_fix_where_it_costs_most(shared_client) -> None:
    log = ARGUMENTS + steps(9, *[1.93, 1.931, 1.932] * 10, *[3.3, 3.301, 3.302] * 10)
    answer = explained(shared_client, {**CLUSTER, "log": log})
    (changed,) = [one for one in answer["log"]["observations"] if one["code"] == "speed_changed"]
    assert changed["cost"] == pytest.approx(1 - 1.931 / (1.931 + 3.301) * 2, abs=0.01)
    assert len(answer["log"]["levels"]) == 2
    assert "at its best speed" in answer["first_fix"]


def test_steps_that_vary_restart_or_warn_are_told(shared_client) -> None:
    log = (
        ARGUMENTS
        + steps(9, *[2.0, 2.2, 2.5, 2.1, 2.4] * 4)
        + "3 CUDA memory allocation retries.\nnode1:7:7 [0] NCCL INFO Using network Socket\n"
        + steps(9, *[2.0, 2.2, 2.5, 2.1, 2.4] * 4)
    )
    answer = explained(shared_client, {**CLUSTER, "log": log})
    assert {"unsteady", "restarted", "allocator_retries", "sockets"} <= codes(answer)


IB_ERROR = (
    "node07:41:99 [3] NCCL WARN NET/IB : Got completion from peer 10.0.0.8<4791> with status=12"
    " opcode=129 len=0 vendor err 129 (Recv)\n"
)


@pytest.mark.parametrize(
    ("line", "code", "word"),
    [
        (IB_ERROR, "network_faults", "etwork between nodes fails"),
        ("kernel: NVRM: Xid (PCI:0000:9b:00): 94, pid=7\n", "device_faults", "take its node out"),
        ("GPU 3: HW Slowdown: Active\n", "throttling", "lowers its clock"),
        ("WARNING: slow node detected: node07\n", "stragglers", "slower than the others"),
        ("dataloader waited 3.4 s for a batch\n", "data_waits", "wait for data"),
    ],
)
def test_a_fault_that_the_log_of_a_slow_run_shows_comes_first(
    shared_client, line: str, code: str, word: str
) -> None:
    log = ARGUMENTS + steps(*[3.1] * 20) + line
    answer = explained(shared_client, {**CLUSTER, "log": log})
    assert answer["speed"]["slower_by"] > 0.5
    assert code in codes(answer)
    late = f"{answer['speed']['slower_by']:.0%}"
    assert answer["first_fix"].startswith(f"Start with what the log says (it is {late} slower")
    assert word in answer["first_fix"]
    assert line.strip() in answer["first_fix"]
    fast = explained(shared_client, {**CLUSTER, "log": log.replace("3100.0", "1950.0")})
    assert (word in fast["first_fix"]) == (code == "device_faults")


@pytest.mark.parametrize("seconds", [2.6, 3.1, 3.8, 6.0, 1.0])
def test_no_term_is_certain_to_make_a_gap_that_its_spread_hardly_explains(
    shared_client, seconds: float
) -> None:
    log = ARGUMENTS + steps(*[seconds] * 20)
    answer = explained(shared_client, {**CLUSTER, "log": log})
    gap = answer["gap"]
    if gap["term"] is None:
        assert "no coefficient explains so large a gap" in gap["summary"]
        assert (gap["summary"] in answer["first_fix"]) == (gap["gap_s"] > 0)
        return
    assert gap["probability"] < 0.95
    assert gap["probability"] + gap["undescribed_probability"] <= 1
    if gap["probability"] < gap["undescribed_probability"]:
        assert "nothing that a prediction describes" in gap["summary"]


def test_a_run_that_ran_out_of_memory_has_none_to_spare(shared_client) -> None:
    log = TITAN.replace("48.91GiB", "30.00GiB") + OUT_OF_MEMORY
    answer = explained(shared_client, {**PREDICTION, "log": log, "outcome": "out_of_memory"})
    assert answer["failure"]["kind"] == "unlikely_out_of_memory"
    assert "memory_to_spare" not in codes(answer)


@pytest.mark.parametrize(
    ("gib", "code"), [("76.10", "memory_near_limit"), ("30.00", "memory_to_spare"), ("60.00", None)]
)
def test_memory_near_its_limit_is_told_and_memory_to_spare(
    shared_client, gib: str, code: str | None
) -> None:
    log = TITAN.replace("48.91GiB", f"{gib}GiB")
    answer = explained(shared_client, {**PREDICTION, "log": log})
    memory = {"memory_near_limit", "memory_to_spare"}
    assert codes(answer) & memory == ({code} if code else set())
    assert ("memory_unexpected" in codes(answer)) == (code != "memory_to_spare")


def test_a_measured_peak_says_what_else_fits(shared_client) -> None:
    tight = {**USUAL, "memory": {"reserved_gib": 70.0}}
    roomy = {**USUAL, "memory": {"reserved_gib": 17.0}}
    knobs = [
        {one["knob"] for one in explained(shared_client, body)["what_to_try"] if one["fits"]}
        for body in (tight, roomy)
    ]
    assert "recompute" in knobs[1]
    assert "micro_batch" in knobs[1] - knobs[0]


def test_a_nemo_log_is_explained(shared_client) -> None:
    body = {"cluster": {"preset": "h100"}, "stack": "megatron", "model": "llama-3-8b", "log": NEMO}
    answer = explained(shared_client, without(body, "model"))
    assert answer["speed"]["measured_step_time_s"] == pytest.approx(4.0)


def test_a_log_of_another_run_is_refused(shared_client) -> None:
    refused = shared_client.post(ADDRESS, json={**PREDICTION, "log": MEGATRON})
    assert_problem(refused, "invalid")


# -- runs that died
# --------------------------------------------------------------------------------------------------


def test_out_of_memory_is_told_what_was_needed_and_what_single_change_fits(shared_client) -> None:
    body = {**LARGE, "layout": TOO_LARGE, "log": OUT_OF_MEMORY}
    answer = explained(shared_client, body)
    failure = answer["failure"]
    assert answer["outcome"] == "out_of_memory"
    assert failure["kind"] == "out_of_memory"
    assert failure["needed_gib"] > failure["usable_gib"]
    assert failure["fit_probability"] < 0.01
    terms = [one["gib"] for one in failure["memory"]]
    assert terms == sorted(terms, reverse=True)
    assert sum(terms) == pytest.approx(failure["needed_gib"], rel=0.01)
    assert failure["error_line"].startswith("torch.OutOfMemoryError: CUDA out of memory.")
    single = [one for one in answer["what_to_try"] if one["kind"] != "search"]
    assert answer["first_fix"].startswith(f"Change {single[0]['change']}: it then fits")
    assert all(one["fits"] for one in answer["what_to_try"])
    assert {"other_processes", "fragmentation", "allocated"} <= codes(answer)


def test_memory_that_other_processes_held_is_named_first(shared_client) -> None:
    log = OUT_OF_MEMORY.replace("Process 4711 has 20.50 GiB", "Process 4711 has 60.50 GiB")
    answer = explained(shared_client, {**PREDICTION, "log": log})
    assert answer["failure"]["kind"] == "not_of_the_layout"
    assert answer["first_fix"].startswith("Memory ran out because other processes held 60.5 of 79")


def test_out_of_memory_of_what_should_fit_asks_for_another_cause_first(shared_client) -> None:
    answer = explained(shared_client, {**PREDICTION, "outcome": "out_of_memory"})
    failure = answer["failure"]
    assert failure["kind"] == "unlikely_out_of_memory"
    assert "though it was predicted to fit" in answer["first_fix"]
    for one in answer["what_to_try"]:
        assert one["needed_gib"] < failure["needed_gib"]


def test_a_crash_of_what_does_not_fit_is_likely_one_of_memory(shared_client) -> None:
    answer = explained(shared_client, {**LARGE, "layout": TOO_LARGE, "outcome": "crashed"})
    assert answer["failure"]["kind"] == "memory_likely"
    assert answer["what_to_try"]


def test_a_crash_that_breaks_a_rule_names_it_and_what_would_be_legal(shared_client) -> None:
    body = {
        **QUESTION,
        "layout": {"dp_shard": 16, "tp": 2, "pp": 4},
        "log": crash("AssertionError: Invalid parallel dims"),
        "outcome": "crashed",
    }
    answer = explained(shared_client, body)
    failure = answer["failure"]
    assert failure["kind"] == "broken_rule"
    assert failure["broken_rules"][0]["name"] == "mesh_fills_cluster"
    assert failure["broken_rules"][0]["rule"] in answer["first_fix"]
    assert failure["error_line"] == "AssertionError: Invalid parallel dims"
    assert answer["speed"] is None
    assert answer["what_to_try"]
    checked = {**QUESTION, "layouts": [one["layout"] for one in answer["what_to_try"]]}
    assert shared_client.post("/v1/predictions", json=checked).is_success


def test_a_crash_of_a_legal_layout_that_fits_quotes_its_error(shared_client) -> None:
    error = "FileNotFoundError: [Errno 2] No such file: '/data/tokens.idx'"
    answer = explained(shared_client, {**CLUSTER, "log": ARGUMENTS + crash(error)})
    failure = answer["failure"]
    assert answer["outcome"] == "crashed"
    assert failure["kind"] == "not_of_the_layout"
    assert failure["error_line"] == error
    assert error in answer["first_fix"]
    assert "not one of memory or layout" in answer["first_fix"]
    assert all(one["gain"] >= 0.01 for one in answer["what_to_try"])


def test_a_crash_after_some_steps_is_seen_unless_the_run_went_on(shared_client) -> None:
    trained = steps(9, *[1.95] * 20)
    died = ARGUMENTS + trained + crash("RuntimeError: NCCL error: unhandled system error")
    answer = explained(shared_client, {**CLUSTER, "log": died})
    assert answer["outcome"] == "crashed"
    assert answer["failure"]["kind"] == "not_of_the_layout"
    assert answer["first_fix"].endswith("The layout is legal, and trained some steps.")
    assert answer["speed"]["within_interval"] is True
    went_on = explained(shared_client, {**CLUSTER, "log": died + trained})
    assert went_on["outcome"] == "ok"
    assert went_on["failure"] is None


@pytest.mark.parametrize(
    "end",
    [
        "slurmstepd: error: *** JOB 8 ON n1 CANCELLED AT 2025-05-01T16:00 DUE TO TIME LIMIT ***\n",
        "Traceback (most recent call last):\n  File train.py, line 3\nKeyboardInterrupt\n",
        "Exception ignored in: <function Reader.__del__>\nTraceback (most recent call last):\n"
        "  File train.py, line 3\nOSError: [Errno 9] Bad file descriptor\n",
    ],
)
def test_a_run_that_trained_until_it_was_stopped_is_explained_by_its_speed(
    shared_client, end: str
) -> None:
    log = ARGUMENTS + steps(9, *[3.9] * 20) + end
    answer = explained(shared_client, {**CLUSTER, "log": log})
    assert answer["outcome"] == "ok"
    assert answer["failure"] is None
    assert "slower than predicted" in answer["first_fix"]


def test_a_run_that_was_stopped_without_a_word_is_sent_to_its_log(shared_client) -> None:
    answer = explained(shared_client, {**PREDICTION, "outcome": "aborted"})
    assert answer["first_fix"].startswith("Start with the last lines of its log: neither memory")


def test_quotes_have_no_control_characters(shared_client) -> None:
    log = crash("RuntimeError: \x1b[31mbad\x07 thing\x1b[0m " + "y" * 3000)
    body = {**PREDICTION, "log": log, "outcome": "crashed"}
    quote = explained(shared_client, body)["failure"]["error_line"]
    assert quote.isprintable()
    assert len(quote) < 310


# -- launch configurations
# --------------------------------------------------------------------------------------------------

LAUNCHED = {
    "launch": {
        "format": "deepspeed",
        "arguments": {
            "train_batch_size": 128,
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 2,
            "bf16": {"enabled": True},
            "zero_optimization": {"stage": 3},
            "optimizer": {"type": "AdamW"},
        },
    },
    "model": "llama-3.1-8b",
    "cluster": {"preset": "h100", "num_chips": 64},
    "workload": {"seq_len": 8192},
}


def test_a_launch_configuration_says_what_ran(shared_client) -> None:
    answer = explained(shared_client, {**LAUNCHED, "measured": {"step_time_s": 4.0}})
    assert answer["launch_read"]["format"] == "deepspeed"
    assert answer["layout"]["zero_stage"] == 3
    assert answer["gap"]["switches"] == []  # the launch says them all
    died = explained(shared_client, {**LAUNCHED, "model": "llama-3-70b", "outcome": "crashed"})
    assert died["failure"]["kind"] == "memory_likely"


def test_a_launch_configuration_and_a_log_go_together(shared_client) -> None:
    arguments = (
        "torchrun --nproc_per_node=8 --nnodes 8 -m torchtitan.train"
        " --parallelism.data_parallel_shard_degree=64 --training.global_batch_size 128"
        " --training.local_batch_size 1 --training.seq_len 8192 --activation_checkpoint.mode none"
    )
    body = {
        "launch": {"format": "torchtitan", "arguments": arguments},
        "model": "llama-3.1-8b",
        "cluster": {"preset": "h100", "num_chips": 64},
        "log": TITAN,
    }
    answer = explained(shared_client, body)
    assert answer["layout"]["recompute"] == "none"
    assert answer["log"]["framework"] == "torchtitan"
    assert answer["speed"]["measured_step_time_s"] == pytest.approx(2.33, abs=0.01)
    other = shared_client.post(ADDRESS, json={**body, "log": MEGATRON})
    assert_problem(other, "invalid")


# -- requests
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "field", "rule"),
    [
        (PREDICTION, "measured", "is required without a log"),
        ({**PREDICTION, "outcome": "ok"}, "measured", "is required without a log"),
        ({**SLOW, "log": TITAN}, "measured", "is read from the log: leave it out"),
        ({**SLOW, "framework": "megatron"}, "framework", "goes with log"),
        (without(SLOW, "layout"), "layout", "prediction_id, recommendation_id, check_id or launch"),
        (
            {"log": TITAN, "cluster": {"preset": "h100", "num_chips": 8}, "stack": "torchtitan"},
            "model",
            "is required without prediction_id, recommendation_id, check_id or launch",
        ),
        ({**PREDICTION, "log": "nothing to see"}, "log", "has no step of"),
        ({**SLOW, "measured": {"step_time_s": 1e-5}}, "measured.step_time_s", "check the unit"),
        ({**SLOW, "memory": {"reserved_gib": 100.0}}, "memory.reserved_gib", "must not exceed"),
        ({**SLOW, "colour": "red"}, "colour", "unknown field"),
    ],
)
def test_what_cannot_be_explained_is_refused(
    shared_client, body: dict[str, Any], field: str, rule: str
) -> None:
    problem = assert_problem(shared_client.post(ADDRESS, json=body), "invalid")
    assert problem["errors"][0]["field"] == field
    assert rule in json.dumps(problem["errors"])


# -- real logs
# --------------------------------------------------------------------------------------------------


@needs_logs
@pytest.mark.parametrize("name", ["nemo-llama3-8b-8xb200", "nemo-llama3-70b-64xb200"])
def test_real_nemo_logs_are_explained(shared_client, name: str) -> None:
    log = (LOGS / f"{name}.log").read_text()
    body = {"log": log, "cluster": {"preset": "b200"}, "stack": "megatron"}
    answer = explained(shared_client, body)
    assert answer["log"]["steps_used"] > 10
    assert "profiling" in codes(answer)


@needs_cases
@pytest.mark.parametrize(
    ("name", "chip", "stack"),
    [
        ("megatron-args-steps", "h100", "megatron"),
        ("megatron-args-oom-before-steps", "h100", "megatron"),
        ("bigscience-dump-stdout-prefix", "a100", "megatron-deepspeed"),
        ("megatron-2020-dump-checkpoint-activations", "a100", "megatron"),
    ],
)
def test_real_logs_with_arguments_are_explained(
    shared_client, name: str, chip: str, stack: str
) -> None:
    log = (CASES / f"{name}.log").read_text()
    answer = explained(shared_client, {"log": log, "cluster": {"preset": chip}, "stack": stack})
    died = "oom" in name
    assert (answer["failure"] is not None) == died
    assert answer["what_to_try"] or died
