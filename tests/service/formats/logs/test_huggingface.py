"""Lines of the Trainer of transformers and of what is built on it."""

from __future__ import annotations

import pytest

from models.errors import Invalid
from service.formats import logs
from tests.service.formats.logs.dialects import megatron, text


def bar(step: int, rate: str, total: int = 100, what: str = "") -> str:
    """As tqdm draws it, each over the one before."""
    minutes, seconds = divmod(3 * step, 60)
    percent = 100 * step // total
    return (
        f"\r{what}{percent:3d}%|{'█' * (percent // 10):10}| {step}/{total}"
        f" [{minutes:02d}:{seconds:02d}<04:15, {rate}]"
    )


LOSS = "{'loss': 1.2345, 'grad_norm': 0.51, 'learning_rate': 1e-05, 'epoch': 0.01}"
END = (
    "{'train_runtime': 302.5, 'train_samples_per_second': 21.157, 'train_steps_per_second': 0.331,"
    " 'train_loss': 1.2, 'epoch': 1.0}"
)


def test_the_bar_of_the_training_is_read_and_its_first_steps_are_not() -> None:
    drawn = [bar(1, "35.20s/it"), *(bar(step, f" 2.9{step % 2}s/it") for step in range(2, 40))]
    reading = logs.read("".join(drawn) + f"\n{LOSS}\n{END}\n")
    assert (reading.framework, reading.unit) == ("huggingface", "step_time_s")
    assert reading.value == pytest.approx(2.905, abs=0.006)
    assert reading.left_out["warm_up"] >= 1


def test_a_bar_of_fast_steps_prints_their_rate() -> None:
    assert logs.read("".join(bar(step, "1.25it/s") for step in range(1, 9))).value == 0.8


def test_a_line_cut_out_of_a_bar_is_read() -> None:
    assert logs.read("12/100 [00:35<04:15, 2.9s/it]").value == 2.9


@pytest.mark.parametrize("what", ["Map: ", "Loading checkpoint shards: ", "Tokenizing: "])
def test_bars_of_other_work_are_no_steps(what: str) -> None:
    with pytest.raises(Invalid, match="progress bar"):
        logs.read(bar(3, "2.00s/it", what=what))


def test_the_bars_of_an_evaluation_are_told_by_their_length() -> None:
    training = [bar(step, "3.00s/it") for step in range(1, 30)]
    evaluation = [bar(step, "9.50it/s", total=40) for step in range(1, 12)]
    assert logs.read("".join([*training, *evaluation, bar(30, "3.00s/it")])).value == 3.0


def test_the_mean_of_the_whole_run_is_what_is_left_without_bars() -> None:
    assert logs.read(END).value == pytest.approx(1 / 0.331)
    steps = "[INFO|trainer.py:2134] 2025-04-19 12:10:44,123 >>   Total optimization steps = 100\n"
    reading = logs.read(steps + END)
    assert reading.value == pytest.approx(3.025)
    assert reading.timestamp is not None


def test_the_table_of_metrics_is_read() -> None:
    table = (
        "***** train metrics *****\n  epoch                    =        1.0\n"
        "  train_runtime            = 0:05:02.50\n  train_steps_per_second   =      0.331\n"
    )
    assert logs.read(table + "  Total optimization steps = 1,00\n").value == pytest.approx(3.025)
    assert logs.read(table).value == pytest.approx(1 / 0.331)


def test_the_journal_of_llama_factory_is_read_by_its_clock() -> None:
    lines = [
        f'{{"current_steps": {10 * k}, "total_steps": 100, "loss": 1.2, "percentage": {10.0 * k},'
        f' "elapsed_time": "0:0{k}:0{k}", "remaining_time": "0:10:30"}}'
        for k in range(1, 6)
    ]
    assert logs.read(text(lines)).value == pytest.approx(6.1)


def test_memory_that_axolotl_prints_is_kept() -> None:
    line = (
        "{'loss': 1.2, 'memory/max_active (GiB)': 15.4, 'memory/max_allocated (GiB)': 15.5,"
        " 'memory/device_reserved (GiB)': 18.57, 'epoch': 0.01}\n"
    )
    reading = logs.read(line + bar(3, "2.00s/it"))
    assert (reading.memory_gib, reading.memory_kind) == (18.57, "reserved")


def test_bars_beside_the_steps_of_another_framework_are_not_read() -> None:
    lines = [megatron(step, 4000.0) for step in range(2, 9)]
    reading = logs.read(text([*lines, bar(3, "2.00s/it")]))
    assert (reading.framework, reading.value) == ("megatron", 4.0)


def test_the_framework_that_is_asked_for_is_read_all_the_same() -> None:
    log = text([megatron(2, 4000.0), bar(3, "2.00s/it")])
    assert logs.read(log, "huggingface").value == 2.0
