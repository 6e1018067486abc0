"""What a launch says and what its request says, put together. The reading is a stub: what the
readers make of text is tested with them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from models.errors import Invalid, UnknownName
from models.layouts.rules import broken_rules
from service.errors import Refused
from service.formats.launch.formats import FORMATS
from service.formats.launch.job import LaunchReading
from service.formats.launch.megatron import reader as megatron_reader
from service.formats.settings.reservation import Reservation
from service.formats.settings.stop import Stop
from service.resolve import launched_question as module
from service.resolve.launched_question import LaunchedQuestion, launched_question
from service.resolve.resolution import Resolver
from service.schemas.launch_form import LaunchForm
from service.schemas.launch_request import LaunchedPredictionRequest
from service.store import Store, database

SHAPE = {
    "num_layers": 32,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
READING = LaunchReading(
    format="deepspeed",
    framework="DeepSpeed",
    version="0.19.8",
    model=SHAPE,
    workload={"seq_len": 4096, "global_batch": 128, "precision": "bf16"},
    stack={"name": "deepspeed"},
    layout={"pp": 1, "cp": 1, "tp": 2, "dp_replicate": 1, "micro_batch": 2, "zero_stage": 3},
    num_devices=None,
    reservations=(Reservation(setting="--puzzle 3"),),
    ignored=("--save", "--load"),
)
CLUSTER = {"preset": "h100", "num_chips": 64}


@pytest.fixture
def asked(databases: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Asks what a reading and the members of a request make together."""

    url = databases.prepared()
    store = Store(database.connect(url))

    def ask(reading: LaunchReading = READING, **members: Any) -> LaunchedQuestion:
        stub = replace(FORMATS["deepspeed"], read=lambda text, version, **_: reading)
        monkeypatch.setattr(module, "FORMATS", {"deepspeed": stub})
        request = LaunchedPredictionRequest.model_validate(
            {"launch": {"format": "deepspeed", "arguments": "x"}, "cluster": CLUSTER, **members}
        )
        with store.reading() as rows:
            return launched_question(Resolver(rows), request.launch, request)

    yield ask
    store.close()
    databases.drop(url)


@contextmanager
def refused(*fields: str) -> Iterator[list[str]]:
    """Within the block Invalid or Refused is raised for these fields; gives the rules."""
    rules = list[str]()
    with pytest.raises((Invalid, Refused)) as caught:
        yield rules
    error = caught.value
    faults = error.errors if isinstance(error, Refused) else [error]
    assert [fault.field for fault in faults] == [*fields]
    rules += [fault.rule for fault in faults]


def test_a_launch_may_say_all_but_the_chips(asked) -> None:
    found = asked()
    problem = found.resolved.problem
    assert problem.architecture.name == "llama-3-8b"
    assert problem.workload.global_batch == 128
    assert problem.stack.id == "deepspeed"
    assert found.layout.dp_shard == 32
    assert found.layout.tp == 2
    assert found.read.unread == ["--puzzle 3"]
    assert found.read.ignored_count == 2
    assert any("dp_shard is 32" in line for line in found.read.assumed)


def test_a_file_that_the_script_edits_is_left_open(asked) -> None:
    launch = {
        "format": "deepspeed",
        "arguments": "sed -i 's/1/2/' ds.json\ndeepspeed train.py --deepspeed ds.json",
        "files": {"ds.json": "{}"},
    }
    edit = asked(launch=launch).reservations[-1]
    assert edit.is_open
    assert edit.setting == "sed -i s/1/2/ ds.json"
    assert "send ds.json as it is afterwards" in edit.cure


def test_a_launch_may_allocate_a_part_of_the_memory(asked) -> None:
    limited = replace(READING, memory_fraction=0.5)
    found = asked(limited)
    whole = asked().resolved.problem.cluster.chip.usable_memory_gib
    assert found.question.cluster.usable_memory_gib == pytest.approx(whole / 2, abs=0.01)
    assert any("cluster.usable_memory_gib is" in line for line in found.read.assumed)
    given = asked(limited, cluster={**CLUSTER, "usable_memory_gib": 70})
    assert given.question.cluster.usable_memory_gib == 70
    assert not any("cluster.usable_memory_gib is" in line for line in given.read.assumed)


def test_the_memory_of_the_request_settles_what_the_launch_leaves_open(asked) -> None:
    reservation = Reservation(setting="PART = $X", answered_by="cluster.usable_memory_gib")
    unsure = replace(READING, reservations=(reservation,))
    assert asked(unsure).reservations == (reservation,)
    assert asked(unsure, cluster={**CLUSTER, "usable_memory_gib": 70}).reservations == ()


@pytest.mark.parametrize(
    ("said", "devices", "degrees"),
    [
        ({"tp": 2, "zero_stage": 3, "dp_replicate": 1}, 64, (32, 1)),
        ({"tp": 2, "zero_stage": 1}, 64, (32, 1)),
        ({"tp": 2, "zero_stage": 0}, 64, (1, 32)),
        ({"tp": 2, "zero_stage": 0, "dp_shard": 1}, 64, (1, 32)),
        ({"tp": 2, "zero_stage": 3, "dp_shard": 8}, 64, (8, 4)),
        ({"dp_replicate": 4, "zero_stage": 3}, 64, (16, 4)),
        ({"pp": 4, "cp": 2, "tp": 2}, 64, (4, 1)),
        ({"dp_shard": 16, "dp_replicate": 1}, 64, (16, 1)),
    ],
)
def test_data_parallelism_takes_the_devices_that_are_left(
    asked, said: dict[str, Any], devices: int, degrees: tuple[int, int]
) -> None:
    layout = asked(
        replace(READING, layout=said), cluster={"preset": "h100", "num_chips": devices}
    ).layout
    assert (layout.dp_shard, layout.dp_replicate) == degrees


def test_degrees_that_do_not_divide_the_devices_are_left_to_the_rules(asked) -> None:
    found = asked(replace(READING, layout={"tp": 3, "pp": 2}))
    names = [rule.name for rule in broken_rules(found.resolved.problem, found.layout.build())]
    assert names[0] == "mesh_fills_cluster"


def test_what_the_framework_stops_at_is_refused_unless_allowed(asked) -> None:
    stop = Stop(
        setting="--recompute-method",
        value=None,
        rule="is needed with full recompute",
        source="megatron-core 0.19.2",
    )
    with refused("launch.arguments.--recompute-method"):
        asked(replace(READING, stops=(stop,)))


def test_a_wrong_value_of_a_launch_has_its_setting_behind_it(asked) -> None:
    reading = replace(
        READING,
        workload={**READING.workload, "global_batch": -1},
        settings_of_fields={"workload.global_batch": "train_batch_size"},
    )
    with pytest.raises(Invalid) as wrong:
        asked(reading)
    assert wrong.value.value == "workload.global_batch = -1 (train_batch_size)"


def test_the_cluster_has_as_many_chips_as_the_launch_unless_it_says_so_itself(asked) -> None:
    reading = replace(READING, num_devices=32)
    assert asked(reading, cluster={"preset": "h100"}).resolved.problem.cluster.num_chips == 32
    assert asked(reading, cluster={"preset": "h100", "num_chips": 32}).layout.dp_shard == 16
    with refused("launch.arguments") as rules:
        asked(replace(reading, devices_setting="train_batch_size"))
    assert "32 devices" in rules[0]
    assert "64" in rules[0]
    with refused("cluster.num_chips"):
        asked(cluster={"preset": "h100"})


def test_the_ranks_that_launchers_start_give_way_to_the_chips_of_the_request(asked) -> None:
    layout = {**READING.layout, "dp_shard": 16, "dp_replicate": 1}
    found = asked(replace(READING, num_devices=32, layout=layout))
    assert found.resolved.problem.cluster.num_chips == 64
    assert found.layout.dp_shard == 32
    (sentence,) = found.overruled
    assert "32 ranks" in sentence
    assert "64 devices" in sentence
    assert found.read.warnings == [sentence]


@pytest.mark.parametrize(("model", "left"), [(None, 1), (SHAPE, 0)])
def test_what_the_request_says_itself_is_no_reservation(asked, model: Any, left: int) -> None:
    named = Reservation(setting="--spec x", answered_by="model")
    assert len(asked(replace(READING, reservations=(named,)), model=model).reservations) == left


def test_all_that_neither_says_is_named_at_once(asked) -> None:
    silent = replace(READING, model=None, workload={"precision": "bf16"})
    with refused("cluster", "model", "workload.seq_len", "workload.global_batch") as rules:
        asked(silent, cluster=None)
    assert all("is required" in rule for rule in rules)
    assert (
        asked(
            silent, model="llama-3-8b", workload={"seq_len": 4096, "global_batch": 64}
        ).resolved.problem.workload.precision
        == "bf16"
    )


@pytest.mark.parametrize(
    ("members", "rule"),
    [
        ({"workload": {"seq_len": 8192}}, "workload.seq_len = 8192 of the request"),
        ({"workload": {"global_batch": 64}}, "workload.global_batch = 64 of the request"),
        (
            {"workload": {"global_batch_tokens": 64 * 4096}},
            "workload.global_batch = 64 of the request",
        ),
        ({"workload": {"precision": "FP8"}}, "workload.precision = fp8 of the request"),
        ({"model": "llama-3-70b"}, "model.num_layers = 80 of the request"),
        ({"model": {"hidden_size": 8192}}, "model.hidden_size = 8192 of the request"),
    ],
)
def test_a_contradiction_names_both_values(asked, members: dict[str, Any], rule: str) -> None:
    with pytest.raises((Invalid, Refused)) as caught:
        asked(**members)
    error = caught.value
    faults = error.errors if isinstance(error, Refused) else [error]
    assert {fault.field for fault in faults} == {"launch.arguments"}
    assert any(rule in fault.rule for fault in faults)


def test_what_both_say_alike_is_no_contradiction(asked) -> None:
    found = asked(
        model="meta-llama/Llama-3.1-8B",
        workload={"seq_len": 4096, "precision": "BF16", "optimizer": "muon"},
    )
    assert found.resolved.problem.workload.optimizer == "muon"


def test_a_shape_may_be_said_in_parts(asked) -> None:
    most = {name: value for name, value in SHAPE.items() if name != "vocab_size"}
    with refused("model.vocab_size"):
        asked(replace(READING, model=most))
    found = asked(replace(READING, model=most), model={"vocab_size": 128256})
    assert found.resolved.problem.architecture.name == "llama-3-8b"


def test_a_launch_may_name_a_model_of_the_catalogue(asked) -> None:
    named = replace(READING, model={"name": "llama-3-8b"})
    assert asked(named).resolved.problem.architecture.name == "llama-3-8b"
    assert asked(named, model="meta-llama/Llama-3.1-8B").question.model == "meta-llama/Llama-3.1-8B"
    with refused("launch.arguments", "launch.arguments", "launch.arguments", "launch.arguments"):
        asked(named, model="llama-3-70b")


def test_a_launch_that_says_little_of_the_model_leaves_it_to_the_request(asked) -> None:
    with refused("model"):
        asked(replace(READING, model={"qk_norm": False}))


def test_the_release_of_a_launch_is_that_of_the_stack(asked, monkeypatch) -> None:
    reading = replace(READING, format="torchtitan", version="0.2.1", stack={"name": "torchtitan"})
    launch = {"format": "deepspeed", "arguments": "x", "version": "0.2.1"}
    assert asked(reading, launch=launch).resolved.problem.stack.age_years > 0
    assert asked(reading).resolved.problem.stack.age_years == 0
    own = {"name": "torchtitan", "age_years": 0.0}
    assert asked(reading, launch=launch, stack=own).resolved.problem.stack.age_years == 0


def test_a_batch_follows_from_micro_batches_and_devices(asked) -> None:
    reading = replace(READING, workload={"seq_len": 4096}, num_micro_batches=4)
    assert asked(reading).resolved.problem.workload.global_batch == 2 * 4 * 32
    with refused("launch.arguments") as rules:
        asked(reading, workload={"global_batch": 128})
    assert "workload.global_batch = 128 of the request" in rules[0]


def test_a_micro_batch_follows_from_the_batch_and_devices(asked) -> None:
    layout = {"tp": 2, "dp_replicate": 1, "zero_stage": 3}
    reading = replace(READING, layout=layout, num_micro_batches=2)
    assert asked(reading).layout.micro_batch == 2
    with refused("launch.arguments"):
        asked(replace(reading, num_micro_batches=3))


def test_the_stack_is_that_of_the_format_with_its_switches(asked) -> None:
    usual = asked(replace(READING, stack={"name": "deepspeed", "gradient_bytes": 2}))
    other = asked(replace(READING, stack={"name": "deepspeed", "gradient_bytes": 4}))
    stacks = {one.resolved.problem.stack.gradient_bytes for one in (usual, other)}
    assert stacks == {2, 4}
    # What the stack has anyway is no change of it.
    assert [one.question.stack for one in (usual, other)].count("deepspeed") == 1


def test_fields_of_the_requests_own_stack_go_first(asked) -> None:
    reading = replace(READING, stack={"name": "deepspeed", "gradient_bytes": 2})
    found = asked(reading, stack={"name": "deepspeed", "gradient_bytes": 4, "fused": True})
    assert found.resolved.problem.stack.gradient_bytes == 4
    assert found.resolved.problem.stack.fused


def test_a_stack_of_another_framework_is_refused(asked) -> None:
    with refused("stack") as rules:
        asked(stack="torchtitan")
    assert "DeepSpeed" in rules[0]
    with refused("stack.name"):
        asked(stack={"name": "torchtitan"})
    with pytest.raises(UnknownName):
        asked(stack="deepspede")


@pytest.mark.parametrize(
    ("part", "members", "value"),
    [
        ("workload", {"seq_len": 0, "global_batch": 128}, "workload.seq_len = 0"),
        ("layout", {"tp": 0}, "layout.tp = 0"),
        ("model", {**SHAPE, "num_layers": 0}, "model.num_layers = 0"),
        ("model", {**SHAPE, "num_attention_heads": 7}, None),
        ("stack", {"name": "deepspeed", "gradient_bytes": 99}, "stack.gradient_bytes = 99"),
    ],
)
def test_what_a_launch_says_wrong_is_blamed_on_it(
    asked, part: str, members: dict[str, Any], value: str | None
) -> None:
    with pytest.raises((Invalid, Refused)) as caught:
        asked(replace(READING, **{part: members}))
    error = caught.value
    faults = error.errors if isinstance(error, Refused) else [error]
    assert {fault.field for fault in faults} == {"launch.arguments"}
    if value is not None:
        assert value in [fault.value for fault in faults]


def test_what_the_request_says_wrong_is_blamed_on_it(asked) -> None:
    with refused("workload.optimiser"):
        asked(workload={"optimiser": "adamw"})
    with refused("workload.routing"):
        asked(workload={"routing": "odd"})
    with refused("model.num_norms"):
        asked(model={"num_norms": 9})


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("--tp 4", "--tp 4"),
        (["--tp", "4", "a b"], "--tp 4 'a b'"),
        (["--tp 4", "--layers=3"], "--tp 4 --layers=3"),
        ({"a": {"b": 1}}, '{"a": {"b": 1}}'),
    ],
)
def test_arguments_come_as_text_as_a_list_or_as_a_document(arguments: Any, text: str) -> None:
    form = LaunchForm.model_validate({"format": "megatron", "arguments": arguments})
    assert form.text == text


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ({"format": "nemo", "settings": {"model.tp": [1, None]}}, "'model.tp=[1,null]'"),
        ({"format": "fsdp", "settings": {"a": 1}, "arguments": ["--b", "2"]}, '{"a": 1, "b": "2"}'),
        ({"format": "megatron", "settings": {"--x": True}, "arguments": ["--y"]}, "--y"),
        ({"format": "mcore", "arguments": ["--y"], "environment": {"A": "b c"}}, "--y"),
    ],
)
def test_a_launch_has_settings_environment_and_the_name_of_a_stack(
    form: dict[str, Any], text: str
) -> None:
    ignored = {"framework": "X", "placeholders": {}, "slurm": {"nodes": 1}, "notes": []}
    own = {"environment": {**form.get("environment", {}), "SHARDWRIGHT_RANK": "1"}}
    launch = LaunchForm.model_validate({**form, **ignored, **own})
    assert launch.text == text
    assert launch.beside.environment == form.get("environment", {})


@pytest.mark.parametrize(
    ("form", "rule"),
    [
        ({}, "needs arguments, or settings"),
        ({"arguments": []}, "needs arguments, or settings"),
        ({"arguments": ["--a"], "environment": {"A;B": "1"}}, "no name of a variable"),
        ({"format": "generic", "arguments": ["--a"]}, "megatron"),
    ],
)
def test_a_launch_that_says_nothing_is_refused(form: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValidationError, match=rule):
        LaunchForm.model_validate({"format": "megatron", **form})


def test_the_environment_of_a_list_is_read() -> None:
    arguments = ["--tensor-model-parallel-size", "2", "--micro-batch-size", "1"]
    form = {"format": "megatron", "arguments": arguments}
    for environment in ({}, {"WORLD_SIZE": "16"}):
        launch = LaunchForm.model_validate({**form, "environment": environment})
        devices = megatron_reader.read(launch.text, None, files=launch.beside).num_devices
        assert devices == (16 if environment else None)


UNSENT = Reservation.of_file("my.yaml", "my.yaml")


def test_defaults_give_way_where_a_file_was_not_sent(asked) -> None:
    """Its text may say what the request says; what is written contradicts it all the same."""
    default_origins = {
        "workload.seq_len": "the default of sequence_len",
        "num_micro_batches": "the default of gradient_accumulation_steps",
    }
    workload = {"seq_len": 512, "precision": "bf16"}
    reading = replace(
        READING, workload=workload, default_origins=default_origins, num_micro_batches=1
    )
    said = {"seq_len": 4096, "global_batch": 256}
    with refused("launch.arguments", "launch.arguments"):
        asked(reading, workload=said)
    opened = replace(reading, reservations=(UNSENT,))
    found = asked(opened, workload=said).question.workload
    assert (found.seq_len, found.global_batch) == (4096, 256)
    assert asked(opened, workload={"global_batch": 256}).question.workload.seq_len == 512
    with refused("launch.arguments"):
        asked(opened, workload={**said, "precision": "fp16"})


def test_a_config_that_was_sent_is_the_model_unless_the_request_has_one(asked) -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 2048,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 8192,
        "vocab_size": 128256,
        "tie_word_embeddings": True,
    }
    reading = replace(READING, model=config)
    assert asked(reading).resolved.problem.architecture.num_layers == 16
    assert asked(reading, model="llama-3-8b").resolved.problem.architecture.num_layers == 32


def test_a_contradiction_says_how_a_value_is_counted(asked) -> None:
    notes = {"workload.global_batch": "a pair is two sequences"}
    with refused("launch.arguments") as rules:
        asked(replace(READING, counting_notes=notes), workload={"global_batch": 64})
    assert "(a pair is two sequences)" in rules[0]
