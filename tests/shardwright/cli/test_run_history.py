from __future__ import annotations

from pathlib import Path

import pytest

from shardwright.cli.run_history import HistoryPoint, NoHistory, RunHistory, csv_history


def _history(**metrics: list[float]) -> RunHistory:
    """Metrics by step, a second apart."""
    return RunHistory(
        metrics={
            name: [HistoryPoint(step, float(step), value) for step, value in enumerate(values)]
            for name, values in metrics.items()
        }
    )


@pytest.mark.parametrize(
    ("name", "scale"),
    [
        ("train/step_time", 1),
        ("time_per_step", 1),
        ("iteration-time", 1),
        ("perf/step_time_ms", 1e3),
        ("train_step_timing in s", None),
        ("step_duration(ms)", 1e3),
    ],
)
def test_a_metric_of_step_times_is_told_by_its_name(name: str, scale: float | None) -> None:
    """Else the times of the steps are taken, which are a second apart here."""
    values = [50.0 * (scale or 1)] + [2.0 * (scale or 1)] * 20
    assert _history(**{name: values}).step_time_s() == pytest.approx(2.0 if scale else 1.0)


def test_memory_is_what_the_framework_counts_and_not_what_a_device_has_in_use() -> None:
    history = _history(
        **{
            "loss": [1.0] * 20,
            "memory/max_active(GiB)": [40.0, 41.0],
            "max_memory_reserved": [45.0 * 2**30],
            "system/gpu_0_memory_usage_megabytes": [70_000.0],
        }
    )
    assert history.report_members() == {
        "outcome": "ok",
        "measured": {"step_time_s": 1.0},
        "memory": {"allocated_gib": 41.0, "reserved_gib": 45.0},
    }


def test_an_exported_table_is_read_by_its_columns(tmp_path: Path) -> None:
    """Steps of 2.5 s, written at every tenth, with a pause for a checkpoint."""
    path = tmp_path / "history.csv"
    rows = [
        f"{10 * n},{25.0 * n + (600 if n > 8 else 0)},{25.0 * n},{3 - n / 10}," for n in range(20)
    ]
    path.write_text("_step,_timestamp,_runtime,train/loss,eval/loss\n" + "\n".join(rows))
    assert csv_history(path).step_time_s() == pytest.approx(2.5)


def test_a_history_without_times_says_what_to_log(tmp_path: Path) -> None:
    path = tmp_path / "history.csv"
    path.write_text("step,loss\n" + "\n".join(f"{n},1.0" for n in range(20)))
    with pytest.raises(NoHistory, match="log a metric step_time"):
        csv_history(path).step_time_s()
    path.write_text("loss\n1.0\n")
    with pytest.raises(NoHistory, match="_step, step or Step.*its columns are loss"):
        csv_history(path)


def test_the_points_of_a_chart_are_read_as_they_are_exported(tmp_path: Path) -> None:
    """W&B writes the name of the run before that of the metric, and its extremes beside it."""
    path = tmp_path / "chart.csv"
    name = "myrun - step_time"
    rows = [f'"{step}","3.3","3.1","3.9"' for step in range(20)]
    path.write_text(f'"Step","{name}","{name}__MIN","{name}__MAX"\n' + "\n".join(rows))
    assert csv_history(path).report_members()["measured"] == {"step_time_s": 3.3}


@pytest.mark.parametrize("column", ["train/global_step", "trainer/global_step"])
def test_the_step_of_the_training_goes_before_the_count_of_what_was_logged(
    tmp_path: Path, column: str
) -> None:
    path = tmp_path / "history.csv"
    rows = [f"{n},{25.0 * n},{10 * n},{3 - n / 10}" for n in range(20)]
    path.write_text(f"_step,_timestamp,{column},train/loss\n" + "\n".join(rows))
    assert csv_history(path).step_time_s() == pytest.approx(2.5)
