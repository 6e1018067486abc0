"""The command in what people paste: words, variables, nodes and ranks."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.errors import Invalid
from service.formats.launch.formats import FORMATS
from service.formats.shell.command import split_command
from service.formats.shell.faults import require_defined
from service.formats.shell.files import LaunchFiles
from tests.long import examples

SCRIPT = """#!/bin/bash
#SBATCH --nodes=32 --ntasks-per-node=1   # of an H100 cluster
#SBATCH --gpus-per-node=8

export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NNODES=${SLURM_NNODES:-"1"}
WORLD_SIZE=$(($GPUS_PER_NODE*$NNODES))
DATA_PATH=$3

DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE   # ranks (of a node)
    --nnodes $NNODES
)
MODEL_ARGS=(
    --num-layers 32
    --normalization "RMSNorm"
    --moe-layer-freq "([0]*1+[1]*31)"
)
if [ -n "${WANDB_API_KEY}" ]; then
    MODEL_ARGS+=(
        --wandb-project ${WANDB_PROJECT:-"Mixtral"}
    )
fi

cd /workspace && mkdir -p logs
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \\
    ${MODEL_ARGS[@]} \\
    --data-path $DATA_PATH 2>&1 | tee logs/run.txt
"""


def test_a_batch_script_has_one_command() -> None:
    command = split_command(SCRIPT)
    assert command.program == "pretrain_gpt.py"
    assert command.words == (
        "--num-layers", "32", "--normalization", "RMSNorm", "--moe-layer-freq", "([0]*1+[1]*31)",
        "--data-path", "$3",
    )  # fmt: skip
    assert command.environment == {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    assert (command.nnodes, command.nproc_per_node, command.num_ranks) == (32, 8, 256)
    assert command.slurm["gpus-per-node"] == "8"
    assert command.in_branches == ('MODEL_ARGS+=( --wandb-project ${WANDB_PROJECT:-"Mixtral"} )',)


def test_a_number_that_is_a_default_is_not_said() -> None:
    alone = SCRIPT.replace("#SBATCH", "# ")
    command = split_command(alone)
    assert (command.nproc_per_node, command.num_ranks) == (8, None)
    assert command.num_ranks_by_default == 8
    assert split_command(SCRIPT).num_ranks_by_default is None


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("torchrun --nproc-per-node 8 a.py --x 1", 8),
        ("torchrun --nnodes=4:4 --nproc-per-node=8 a.py --x 1", 32),
        ("torchrun --nnodes $N --nproc-per-node=8 a.py --x 1", None),
        ("python -m torch.distributed.launch --nnodes 2 --nproc_per_node 4 a.py --x 1", 8),
        ("srun -N4 -n32 python -u a.py --x 1", 32),
        ("srun --nodes 4 --ntasks-per-node 8 python -m some.module --x 1", 32),
        ("mpirun -np 16 python a.py --x 1", 16),
        ("accelerate launch --num_machines 2 --num_processes 16 a.py --x 1", 16),
        ("deepspeed --num_nodes 2 --num_gpus 8 a.py --x 1", 16),
        ("export WORLD_SIZE=64\npython a.py --x 1", 64),
        ("#SBATCH -N 2\n#SBATCH --ntasks-per-node=4\nsrun python a.py --x 1", 8),
        ("mpirun -np 16 -N 8 python a.py --x 1", 16),
        ("#SBATCH -N 4\n#SBATCH --gres=gpu:8\nsrun python a.py --x 1", 32),
        ("#SBATCH -N 4\n#SBATCH --gres=gpu:h100:8,nvme:1\nsrun python a.py --x 1", 32),
        ("#SBATCH -N 4\n#SBATCH --gpus-per-node=h100:8\nsrun torchrun --nnodes 4 a.py --x 1", 32),
        ("#SBATCH -N 4\nsrun --gpus-per-node 4 torchrun --nnodes 4 a.py --x 1", 16),
        ("#SBATCH --gres=gpu:8\npython a.py --x 1", 8),
        ("#SBATCH --gpus=128\nsrun python a.py --x 1", 128),
        ("#SBATCH -G 128\nsrun torchrun --nproc-per-node 8 a.py --x 1", 128),
        ("#SBATCH -N 16 -G128\nsrun torchrun --nnodes 16 a.py --x 1", 128),
        ("#SBATCH -N 2 --ntasks-per-node=4 --gpus-per-task=1\nsrun python a.py --x 1", 8),
        ("#SBATCH -N 2 -n 8 --gpus-per-task=a100:1\nsrun python a.py --x 1", 8),
        ("#SBATCH -N 2 --ntasks-per-node=1 --gpus-per-node=8\nsrun bash a.sh --x 1", 16),
        (
            "#SBATCH -N 2 --gres=gpu:8\nsrun torchrun --nnodes 2 --nproc-per-node 4 a.py --x 1",
            8,
        ),
        (
            "#SBATCH -N 2 --gpus-per-node=8\n"
            "srun torchrun --nnodes $SLURM_NNODES --nproc-per-node $SLURM_GPUS_ON_NODE a.py --x 1",
            16,
        ),
        ("#SBATCH -N 2-4 --gpus-per-node=8\nsrun torchrun a.py --x 1", None),
        ("srun --nodes=8 --gres=gpu:8 torchrun --nnodes 8 a.py --x 1", 64),
        ("#SBATCH -N 2 --gpus-per-node=8\nsrun ray start\npython a.py --x 1", 16),
        ("#SBATCH -N 4 --gpus-per-node=8 -w n[1-4]\nsrun -N1 python a.py --x 1", 8),
        ("CUDA_VISIBLE_DEVICES=0,1,2,3 torchrun --nproc-per-node gpu a.py --x 1", 4),
        # A step may run on a part of its job.
        ("#SBATCH -N 4 --gpus-per-node=8\nsrun -N 2 torchrun --nnodes 2 a.py --x 1", 16),
        ("#SBATCH -N 4 --gpus=32\nsrun -N 2 python a.py --x 1", 16),
        ("#SBATCH -N 4 --gpus-per-node=8\nsrun -N1 -r 3 torchrun --nnodes 4 a.py --x 1", 32),
        ("#SBATCH -N 4\nexport PET_NNODES=4\nsrun torchrun --nproc-per-node 8 a.py --x 1", 32),
        ("#SBATCH -N 4 --gpus-per-node=8\nsrun torchrun $MORE a.py --x 1", 32),
        ("#PBS -l select=1:ngpus=8+3:ngpus=8\nmpiexec -n 32 --ppn 8 python a.py --x 1", 32),
        ("#PBS -l select=1:ngpus=4+3:ngpus=8\nmpiexec -n 20 python a.py --x 1", 20),
        ("jsrun -n 2 -a 1 -g 6 torchrun --nnodes 2 --nproc_per_node 6 a.py --x 1", 12),
        ("deepspeed --include localhost:0,1,2,3 a.py --x 1", 4),
        ("python a.py --x 1", None),
        ("--x 1", None),
    ],
)
def test_ranks_are_those_of_the_launcher(text: str, ranks: int | None) -> None:
    command = split_command(text)
    assert command.words == ("--x", "1")
    assert command.num_ranks == ranks


@pytest.mark.parametrize(
    ("text", "figures"),
    [
        (
            "#SBATCH -N 16 --gpus-per-node=4 --ntasks-per-node=8\nsrun python a.py",
            ("#SBATCH --ntasks-per-node=8", "8 ranks", "#SBATCH --gpus-per-node=4"),
        ),
        (
            "#SBATCH --nodes=16\nsrun torchrun --nnodes 8 --nproc-per-node 8 a.py",
            ("torchrun --nnodes=8", "8 nodes", "#SBATCH --nodes=16", "16"),
        ),
        (
            "#SBATCH --nodes=16\nsrun -N 32 torchrun --nnodes 32 --nproc-per-node 8 a.py",
            ("srun -N=32", "32 nodes", "#SBATCH --nodes=16", "16"),
        ),
        (
            "#SBATCH --nodes=16\ntorchrun --nproc-per-node 8 a.py",
            ("torchrun without --nnodes", "1 nodes", "#SBATCH --nodes=16", "16"),
        ),
        (
            "#SBATCH --nodes=16\nsrun torchrun --standalone --nproc-per-node 8 a.py",
            ("torchrun --standalone", "1 nodes", "#SBATCH --nodes=16", "16"),
        ),
        (
            "#SBATCH --nodes=16 --gpus-per-node=8\npython -u -m a",
            ("python -u -m a", "first of the 16 nodes", "#SBATCH", "srun"),
        ),
        (
            "#SBATCH -N 2 --gpus-per-node=8\n#SBATCH hetjob\n#SBATCH -N 1 --gpus-per-node=8\n"
            "srun --het-group=0,1 torchrun --nnodes 2 a.py",
            ("torchrun --nnodes=2", "2 nodes", "3"),
        ),
        (
            "#PBS -l select=1:ngpus=4+3:ngpus=8\nmpiexec -n 32 python a.py",
            ("mpiexec -n=32", "32 ranks", "28 GPUs"),
        ),
        (
            "#SBATCH -N 2 --gres=gpu:4\nsrun torchrun --nnodes 2 --nproc-per-node 8 a.py",
            ("torchrun --nproc-per-node=8", "8 ranks", "#SBATCH --gres=gpu:4", "4 GPUs"),
        ),
        (
            "#SBATCH -N 2 --gres=gpu:4 --gpus-per-node=8\nsrun torchrun --nnodes 2 a.py",
            ("#SBATCH --gres=gpu:4", "#SBATCH --gpus-per-node=8"),
        ),
        (
            "#SBATCH -N 16 -n 128 --gpus-per-node=4\nsrun python a.py",
            ("#SBATCH -n=128", "128 ranks", "64 GPUs"),
        ),
    ],
)
def test_figures_that_disagree_are_named(text: str, figures: tuple[str, ...]) -> None:
    with pytest.raises(Invalid) as refused:
        split_command(text)
    message = f"{refused.value.value} {refused.value.rule}"
    assert all(figure in message for figure in figures), message


@pytest.mark.parametrize(
    "text",
    [
        "--x 1 \\\n  --y 'a b'",
        "--x 1\n--y 'a b'",
        "--x 1 # of a few\n--y 'a b'",
        "# of a few\n--x 1 --y 'a b'",
        "\n  # of a few\n# of many\n--x 1\n--y 'a b' \\\n",
        'OPTIONS=" --x 1 \\\n --y"\nsrun sh -c "python a.py ${OPTIONS} \'a b\'"',
        "bash -eo pipefail -c -- \"python a.py --x 1 --y 'a b'\"",
        "ARGS=(--x 1 --y 'a b')\npython a.py \"${ARGS[@]}\"",
        "run() {\n  X=3\n}\nX=1; python a.py --x $X --y 'a b' > log 2> errors",
        "for i in 2 1; do X=$i; done; python a.py --x ${X:-3} --y 'a b' &",
        "[ -z $X ] && X=1\nA=1 python a.py --x ${X:-7} --y a\\ b",
        '["--x", 1, "--y", "a b"]',
    ],
)
def test_the_same_arguments_are_read_in_every_form(text: str) -> None:
    assert split_command(text).words == ("--x", "1", "--y", "a b")


def test_arguments_alone_may_have_brackets_and_bars() -> None:
    text = "A=1 --layout Et*3|(tt|)*29|L\n--moe-layer-freq ([0]*3+[1]*58) --x & y"
    assert split_command(text).words == (
        "--layout", "Et*3|(tt|)*29|L", "--moe-layer-freq", "([0]*3+[1]*58)", "--x", "&", "y",
    )  # fmt: skip


def test_a_list_of_assignments_is_one_of_overrides() -> None:
    text = "steps=10 model.x=[1,2]\n++optimizer.lr=3e-4"
    assert split_command(text).words == ("steps=10", "model.x=[1,2]", "++optimizer.lr=3e-4")


def test_variables_in_front_of_a_command_are_its_environment() -> None:
    command = split_command("NCCL_DEBUG=INFO env A=2 torchrun a.py --x 1")
    assert command.environment == {"NCCL_DEBUG": "INFO", "A": "2"}


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("--x 'b", "a ' that is not closed"),
        ("X=(1 2", "a ( that is not closed"),
        ("python a.py 1\npython b.py 2", "starts 2 commands"),
    ],
)
def test_what_cannot_be_read_is_refused(text: str, rule: str) -> None:
    with pytest.raises(Invalid, match="launch.arguments") as refused:
        split_command(text)
    assert rule in refused.value.rule


def test_variables_that_double_are_bounded() -> None:
    text = "A=" + "x" * 100 + "\n" + 'A="$A$A"\n' * 40 + "python a.py $A"
    with pytest.raises(Invalid, match="hold more than"):
        split_command(text)


@pytest.mark.parametrize("word", ["$TP", "${TP}", "x$TP", "$(nproc)", "`nproc`", "$1"])
def test_a_value_that_the_text_does_not_define_is_named(word: str) -> None:
    words = split_command(f"python a.py --tp {word}").words
    with pytest.raises(Invalid, match="is not defined in the text"):
        require_defined("--tp", words[1])


@settings(max_examples=examples(500))
@given(st.lists(st.text(st.characters(codec="ascii", exclude_characters="\0")), max_size=6))
def test_words_are_those_that_a_shell_would_pass(words: list[str]) -> None:
    given_words = ["--x", *words]
    assert list(split_command(f"python a.py {shlex.join(given_words)}").words) == given_words


def test_a_branch_leaves_a_variable_as_it_was_and_is_listed() -> None:
    text = 'PAR="--tp 8"\nif [ -n "$FP8" ]; then PAR="$PAR --fp8"; fi\npython a.py $PAR'
    command = split_command(text)
    assert command.words == ("--tp", "8")
    assert command.in_branches == command.replaced_in_branches == ('PAR="$PAR --fp8"',)


def test_a_branch_may_add_flags_where_the_other_leaves_none() -> None:
    text = 'if [ -e a ]; then X="--load a"; else X=""; fi\npython a.py --tp 2 $X'
    command = split_command(text)
    assert command.words == ("--tp", "2")
    assert command.in_branches == ('X="--load a"',)


def test_empty_words_that_double_are_bounded() -> None:
    text = 'A=("" "")\n' + 'A+=("${A[@]}" "${A[@]}")\n' * 40 + 'python a.py "${A[@]}"'
    with pytest.raises(Invalid, match="hold more than"):
        split_command(text)


MODEL_FLAGS = "--num-layers 8 --hidden-size 64 --num-attention-heads 8 --micro-batch-size 1"


@pytest.mark.parametrize(
    ("format_", "command"),
    [
        ("megatron", f"torchrun a.py {MODEL_FLAGS} %s"),
        ("megatron", f"torchrun a.py {MODEL_FLAGS} --bf16 %s"),
        ("megatron", f"torchrun a.py %s {MODEL_FLAGS}"),
        ("megatron-bridge", "torchrun a.py train.micro_batch_size=1 %s"),
        ("torchtitan", "torchrun -m torchtitan.train --module llama3 --config llama3_8b %s"),
        ("maxtext", "python3 -m maxtext.trainers.pre_train.train base.yml steps=10 %s"),
        ("accelerate", "accelerate launch --use_fsdp %s a.py --per_device_train_batch_size 1"),
        ("accelerate", "accelerate launch --use_fsdp a.py --per_device_train_batch_size 1 %s"),
    ],
)
@pytest.mark.parametrize("word", ["$PAR", "${PAR}", '"${PAR[@]}"', "$(cat flags)"])
def test_arguments_that_the_text_does_not_define_are_refused_by_name(
    format_: str, command: str, word: str
) -> None:
    with pytest.raises(Invalid, match="add the line that sets it") as refused:
        FORMATS[format_].read(command % word, None)
    assert refused.value.value in ("$PAR", "$(cat flags)")
    for defined in (f"PAR=\n{command % '$PAR'}", command % '"$@"', command % "$*"):
        FORMATS[format_].read(defined, None)


@pytest.mark.parametrize(
    ("format_", "text", "listed"),
    [
        (
            "megatron",
            f"TP=1\n[ -n $BIG ] && TP=8\ntorchrun a.py {MODEL_FLAGS}"
            " --tensor-model-parallel-size $TP",
            "TP=8 (set in a branch)",
        ),
        (
            "megatron",
            f"A='{MODEL_FLAGS}'\nif x; then A=\"$A --fp8-format hybrid\"; fi\ntorchrun a.py $A",
            'A="$A --fp8-format hybrid" (set in a branch)',
        ),
        (
            "megatron-bridge",
            "A=2\nif x; then A=4; fi\ntorchrun a.py train.micro_batch_size=$A",
            "A=4 (set in a branch)",
        ),
        (
            "accelerate",
            "A=2\nif x; then A=4; fi\naccelerate launch --num_processes $A --use_fsdp a.py",
            "A=4 (set in a branch)",
        ),
    ],
)
def test_what_a_branch_may_change_is_unread(format_: str, text: str, listed: str) -> None:
    found = FORMATS[format_].read(text, None)
    assert listed in [each.text for each in found.reservations]


def test_a_program_may_be_a_variable() -> None:
    found = split_command('torchrun --nproc-per-node 8 "$TRAIN_SCRIPT" --tp 4')
    assert (found.program, found.words, found.num_ranks) == ("$TRAIN_SCRIPT", ("--tp", "4"), 8)
    assert split_command("torchrun $ARGS train.py --tp 4").program == "train.py"


def test_a_statement_of_variables_alone_is_no_list_of_arguments() -> None:
    assert split_command('"$@" \\\n--tp 4').words == ("--tp", "4")


def test_a_script_in_front_of_python_wraps_it() -> None:
    command = split_command("mpiexec -n 8 --ppn 4 ./affinity.sh python3 pretrain.py --tp 2")
    assert (command.program, command.words) == ("pretrain.py", ("--tp", "2"))
    assert command.num_ranks == 8


def test_a_script_in_front_of_a_program_wraps_it_unless_it_was_sent() -> None:
    text = "srun -N 2 ./launch.sh pretrain_gpt.py --tp 2"
    command = split_command(text)
    assert (command.program, command.words) == ("pretrain_gpt.py", ("--tp", "2"))
    sent = LaunchFiles({"launch.sh": 'torchrun --nnodes 2 --nproc_per_node 4 "$@" --bf16\n'})
    command = split_command(text, sent)
    assert (command.program, command.words) == ("pretrain_gpt.py", ("--tp", "2", "--bf16"))
    assert command.num_ranks == 8


@pytest.mark.parametrize(
    ("options", "ranks"),
    [
        ("", 20),
        ("--num_nodes 2", 16),
        ("--num_gpus=4", 12),
        ("--include worker-1:0,1@worker-3", 6),
        ("--exclude='worker-2@worker-1:7'", 11),
    ],
)
def test_a_file_of_hosts_says_how_many_ranks_deepspeed_starts(options: str, ranks: int) -> None:
    hosts = "# all\nworker-1 slots=8\nworker-2 slots=8\n\nworker-3 slots=4  # half\n"
    text = f"deepspeed --hostfile=job/hostfile {options} train.py --a 1"
    assert split_command(text, LaunchFiles({"hostfile": hosts})).num_ranks == ranks
    written = f"cat > job/hostfile <<END\n{hosts}END\n{text}"
    assert split_command(written).num_ranks == ranks
    others = LaunchFiles({"hostfile": "worker-1 gpus\n"})
    assert split_command(text.replace(options, ""), others).nnodes is None


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("jsrun -n 4 -a 6 -c 42 -g 6 -r 1 python train.py --a 1", 24),
        ("jsrun --nrs 8 --tasks_per_rs 1 python train.py --a 1", 8),
        ("torchx run -s slurm dist.ddp -j 4x8 --gpu 8 --script train.py -- --a 1", 32),
    ],
)
def test_ranks_are_counted_by_sets_of_equal_size(text: str, ranks: int) -> None:
    command = split_command(text)
    assert (command.program, command.words, command.num_ranks) == ("train.py", ("--a", "1"), ranks)


@pytest.mark.parametrize(
    ("options", "chip", "chips"),
    [
        ("--tpu-type=v5p-128 --num-slices 2", "v5p", 128),
        ("--tpu-type v4-32", "v4", 16),
        ("--tpu-type=v5litepod-256", "v5e", 256),
        ("--device-type=v6e-64 --num-slices=4", "v6e", 256),
        ("--tpu-type=tpu7x-128", "tpu7x", 64),
        ("--tpu-type=tpu7x-4x4x4", "tpu7x", 64),
        ("--device-type=h100-mega-80gb-8 --num-nodes=4", "h100-mega-80gb", 32),
        ("--device-type=gb200-4", "gb200", 4),
        ("--device-type=n2-standard-32", None, None),
        ("--tpu-type=$TYPE", None, None),
    ],
)
def test_a_type_of_slices_says_the_chips(options: str, chip: str | None, chips: int | None) -> None:
    text = f'xpk workload create --workload w {options} --command "python3 train.py a=1"'
    command = split_command(text)
    assert (command.chip, command.num_ranks, command.words) == (chip, chips, ("a=1",))


def test_a_variable_that_holds_a_program_and_its_flags_is_no_argument() -> None:
    text = 'CMD="pretrain_gpt.py --tp 2"\nsrun python $CMD 2>&1 | tee log.txt\n'
    assert split_command(text).words == ("--tp", "2")
    assert split_command('NAME="a b" --tp 2').words == ("--tp", "2")


@pytest.mark.parametrize("python", ["python", "/opt/venv/bin/python3.11"])
def test_a_text_that_python_runs_is_no_program(python: str) -> None:
    text = f'{python} -c "import torch" train.py --smoke\npython pretrain.py --num-layers 8'
    assert split_command(text).program == "pretrain.py"


def test_a_script_that_is_made_executable_is_started_once() -> None:
    files = LaunchFiles({"base.sh": 'python3 train.py --tp "${1:-8}"\n'})
    command = split_command("chmod +x ./base.sh\n./base.sh 4\n", files)
    assert command.words == ("--tp", "4")


def test_a_program_may_be_named_by_a_default() -> None:
    command = split_command('python3 -m maxtext.trainers."${1:-train}" --tp 2\n')
    assert command.program == "maxtext.trainers.train"


def test_a_sum_that_is_not_known_names_what_is_not_known_in_it() -> None:
    text = "N=$(python3 -c 'import jax')\nSLOTS=$(( N * 2 ))\npython3 train.py --b $(( 8 / SLOTS ))"
    (word,) = [word for word in split_command(text).words if "$" in word]
    assert "N * 2" in word


def test_a_sum_behind_a_default_is_a_sum() -> None:
    text = 'A=64\n: "${B:=$(( A / 16 ))}"\npython3 train.py --b $B --c ${C:-$((A/8))}\n'
    assert split_command(text).words == ("--b", "4", "--c", "8")


def test_the_field_of_a_text_is_cut_out() -> None:
    text = "D=v5p-128\nN=$(echo \"$D\" | cut -d'-' -f2)\npython3 train.py --n $N\n"
    assert split_command(text).words == ("--n", "128")


def test_what_a_command_prints_is_one_word() -> None:
    text = "NAME=run-$(date +%Y-%m %d)\npython3 train.py --name $NAME --tp 2\n"
    assert split_command(text).words == ("--name", "run-$(date +%Y-%m %d)", "--tp", "2")


@pytest.mark.parametrize(
    "text",
    [
        "python3 -m convert.to_huggingface x\npython3 -m tools.logit_checker y\n",
        "python3 eval_sft_omni.py\npython3 -m pkg.install_pre_train_deps\n",
    ],
)
def test_of_programs_that_do_not_train_the_last_is_named(text: str) -> None:
    program = split_command(text).program
    assert program is not None
    assert program in text.splitlines()[1]


def test_a_loop_over_hosts_starts_one_job() -> None:
    line = 'ssh $H "cd /w && torchrun --nnodes=2 --node_rank=$R --nproc_per_node=8 train.py --tp 2"'
    text = f"R=0\nfor H in a b; do\n  {line} &\n  R=$((R+1))\ndone\nwait\n"
    command = split_command(text)
    assert (command.program, command.words) == ("train.py", ("--tp", "2"))
    assert command.num_ranks == 16


@pytest.mark.parametrize("place", ["-r $R", "--relative=$R", "-w node$R"])
def test_a_loop_over_steps_starts_one_job(place: str) -> None:
    step = f"srun -N1 -n1 {place} torchrun --nnodes 2 --node_rank $R --nproc_per_node 8 t.py -r 3"
    text = f"#SBATCH -N 2 --gpus-per-node=8\nfor R in 0 1; do\n  {step} &\ndone\nwait\n"
    command = split_command(text)
    assert (command.words, command.num_ranks) == (("-r", "3"), 16)


@pytest.mark.parametrize(
    "starts",
    [
        "docker run -e TP=4 -v $PWD:/w image",
        "docker run --env=TP=4 image",
        "apptainer exec --env A=1,TP=4 image.sif",
        "srun --export=ALL,TP=4",
        "srun --export ALL,TP=4",
        "env TP=4",
    ],
)
def test_what_starts_a_shell_sets_its_variables(starts: str) -> None:
    assert split_command(f"{starts} bash -c 'python a.py --tp $TP'").words == ("--tp", "4")
    assert split_command(f"{starts} python a.py").environment["TP"] == "4"


def test_lines_behind_the_first_command_ask_sbatch_for_nothing() -> None:
    header = "#!/bin/bash\n#SBATCH -N 2\n# of an H100 cluster\n\n#SBATCH --gpus-per-node=8\n"
    text = f"{header}module load cuda\n#SBATCH --gpus-per-node=4\nsrun python a.py"
    command = split_command(text)
    assert command.num_ranks == 16
    assert "#SBATCH --gpus-per-node=4" in command.notes[0]


def test_comments_in_an_array_are_none_of_its_words() -> None:
    text = 'A=(\n  --tp 2  # ranks\n  # all of them\n  --pp 4\n)\npython3 train.py "${A[@]}"\n'
    assert split_command(text).words == ("--tp", "2", "--pp", "4")


def test_the_command_that_xpk_takes_is_the_one_that_trains() -> None:
    text = 'python3 xpk.py workload create --num-slices=2 --command "python3 -m a.train tp=2"\n'
    command = split_command(text)
    assert (command.program, command.words) == ("a.train", ("tp=2",))


def test_the_command_that_runners_of_maxtext_take_is_the_one_that_trains() -> None:
    text = (
        "python3 multihost_job.py --NUM_SLICES=2 --TPU_TYPE=v4-128 --BUCKET_NAME=b"
        ' --COMMAND="bash setup.sh && python3 -m MaxText.train base.yml tp=2"\n'
    )
    command = split_command(text)
    assert (command.program, command.words) == ("MaxText.train", ("base.yml", "tp=2"))
    assert (command.chip, command.num_ranks) == ("v4", 128)


@pytest.mark.parametrize("requests", ["--gres=gpu:8", "--gpus-per-node=8 --gres=gpu:8"])
def test_gpus_that_slurm_gave_go_before_those_that_a_script_asks_for(requests: str) -> None:
    environment = {"SLURM_GPUS_ON_NODE": "4"}
    text = f"#SBATCH -N 2 {requests}\nsrun torchrun --nnodes 2 a.py --x 1"
    command = split_command(text, LaunchFiles(environment=environment))
    assert command.num_ranks == 8
    assert len(command.notes) == 1
