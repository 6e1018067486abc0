"""Whole scripts of the kinds that people submit: what they start, and on how many ranks."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest

from models.errors import Invalid
from service.formats.shell.command import Command, split_command, with_reason
from service.formats.shell.faults import Undefined, require_defined
from service.formats.shell.files import LaunchFiles

MEGATRON_SLURM = """#!/bin/bash
#SBATCH --job-name=gpt
#SBATCH --nodes=4
#SBATCH --gpus-per-node=h100:8
#SBATCH --ntasks-per-node=1
set -euo pipefail
module load cuda/12.4 || true
source ~/env/bin/activate
export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n1)
: "${TP:=2}"
: ${PP:=2}
MBS=${MBS:-1}
GBS=$((SLURM_NNODES * 8 * 4))
srun -N 1 -n 1 python tools/preprocess_data.py --input corpus.jsonl
OPTIONS=" \\
    --tensor-model-parallel-size $TP \\
    --pipeline-model-parallel-size $PP \\
    --micro-batch-size $MBS --global-batch-size $GBS"
OPTIONS="$OPTIONS --bf16"
case "${MODEL:-8b}" in
  8b) LAYERS=32; HIDDEN=4096 ;;
  70b) LAYERS=80; HIDDEN=8192 ;;
esac
if [ "$PP" -gt 1 ]; then OPTIONS+=" --use-distributed-optimizer"; else OPTIONS+=" --x"; fi
srun numactl --cpunodebind=0 bash -c "torchrun --nnodes $SLURM_NNODES --nproc_per_node 8 \\
  --node_rank \\$SLURM_PROCID pretrain_gpt.py --num-layers $LAYERS --hidden-size $HIDDEN $OPTIONS"
"""
PBS = """#!/bin/bash
#PBS -l select=2:ncpus=64:ngpus=8:mpiprocs=8
#PBS -q gpu
cd $PBS_O_WORKDIR
NNODES=$(sort -u $PBS_NODEFILE | wc -l)
mpiexec --np $((NNODES * 8)) --ppn 8 python pretrain_gpt.py --seq-length 4096
"""
FUNCTIONS = """
launch() {
  local tp=$1; shift
  torchrun --nproc_per_node "${GPUS:-8}" pretrain_gpt.py --tensor-model-parallel-size "$tp" "$@"
}
EXTRA=()
for flag in bf16 swiglu; do EXTRA+=("--$flag"); done
launch 4 "${EXTRA[@]}"
"""
SUBMITTED = """cat > job.sh <<'EOF'
#!/bin/bash
#SBATCH -N 8
#SBATCH --gres=gpu:a100:4
srun torchrun --nnodes 8 --nproc_per_node 4 train.py --lr 1
EOF
sbatch job.sh
"""
CONTAINERS = """
docker run --gpus all -v $PWD:/w nvcr.io/nvidia/pytorch:25.01-py3 \\
  nsys profile -o out --force-overwrite true torchrun --nproc_per_node=8 train.py --a 1
"""
APPTAINER = """#SBATCH -N 2
#SBATCH --gpus-per-node=4
srun apptainer exec --nv image.sif bash -lc 'torchrun --nnodes 2 --nproc_per_node 4 train.py --a 1'
"""
HETEROGENEOUS = """#SBATCH --nodes=4 --gpus-per-node=8
#SBATCH hetjob
#SBATCH --nodes=2 --gpus-per-node=8
srun --het-group=0,1 torchrun --nnodes 6 --nproc_per_node 8 train.py --a 1
"""
STRINGS = """
F=llama-3.1-8b.yaml; NAME=${F%.yaml}; SIZE=${NAME##*-}; UNDER=${NAME//-/_}
python train.py --a ${SIZE} --b ${UNDER^^} --c ${#NAME} --d ${NESTED:-${OTHER:-x}} --e ${NAME:0:5}
"""
LISTS = """
ARGS="--a 1"
ARGS="$ARGS --b 2"
ARGS+=" --c 3"
declare -a MORE=(--d "4 5")
MORE+=(--e)
eval "torchrun train.py $ARGS ${MORE[@]@Q}" 2>/dev/null || torchrun train.py $ARGS "${MORE[@]}"
"""
RAY = "ray job submit --address http://head:8265 -- python train.py --a 1"
SOURCED = "source conf.sh\ntorchrun train.py --a $A --b ${B:-7}"
SSH = 'for h in a b; do :; done\nssh node1 "cd /w && torchrun --nproc_per_node 8 train.py --a 1"'
DECIDED = """MODE=big
if [[ $MODE == b* && -n "$MODE" ]]; then A=1; elif [ "$MODE" = x ]; then A=2; else A=3; fi
[ "$MODE" = small ] && A=9
test "$A" -eq 1 && B=2 || B=3
python train.py --a $A --b $B
"""
DOCKERFILE = """cat > Dockerfile <<EOF
FROM $BASE
RUN pip install -r $REQ
EOF
docker build -t x .
torchrun --nproc_per_node 8 train.py --a 1
"""
USAGE = """if [ $# -lt 1 ]; then echo "usage: $0 TP"; exit 1; fi
while [[ $# -gt 0 ]]; do case $1 in --tp) TP=$2; shift 2;; *) shift;; esac; done
torchrun train.py --tp ${TP:-4}
"""
SCRIPTS = [
    MEGATRON_SLURM, PBS, FUNCTIONS, SUBMITTED, CONTAINERS, APPTAINER, HETEROGENEOUS, STRINGS, LISTS,
    SSH, DECIDED, DOCKERFILE, USAGE,
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "words", "ranks"),
    [
        (
            MEGATRON_SLURM,
            "--num-layers 32 --hidden-size 4096 --tensor-model-parallel-size 2"
            " --pipeline-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 128 --bf16"
            " --use-distributed-optimizer",
            32,
        ),
        (PBS, "--seq-length 4096", 16),
        (FUNCTIONS, "--tensor-model-parallel-size 4 --bf16 --swiglu", None),
        (SUBMITTED, "--lr 1", 32),
        (CONTAINERS, "--a 1", 8),
        (APPTAINER, "--a 1", 8),
        (HETEROGENEOUS, "--a 1", 48),
        (STRINGS, "--a 8b --b LLAMA_3.1_8B --c 12 --d x --e llama", None),
        (RAY, "--a 1", None),
        (SSH, "--a 1", 8),
        (DECIDED, "--a 1 --b 2", None),
        (DOCKERFILE, "--a 1", 8),
        (USAGE, "--tp 4", None),
    ],
)
def test_a_script_says_what_a_shell_would_start(text: str, words: str, ranks: int | None) -> None:
    command = split_command(text)
    assert list(command.words) == words.split()
    assert command.num_ranks == ranks
    assert command.in_branches == ()


TRAIN = "torchrun train.py {}"


@pytest.mark.parametrize(
    ("before", "words"),
    [
        ('f() { echo --a 1 --b "$B"; }\nB=2\n', "$(f)"),
        ("f() {\n  echo --a 1\n  echo --b $1\n}\n", "$(f 2)"),
        ("f() { if [ $1 = 3 ]; then echo --c; else echo --a 1 --b 2; fi; }\n", "$(f 2)"),
        ("cat > args.txt <<END\n--a 1\n--b 2\nEND\n", "$(cat args.txt)"),
        ("cat > args.txt <<END\n--a 1\n--b 2\nEND\n", "$(< args.txt)"),
        ("cat > args.txt <<END\n--a 1\n--b 2\nEND\n", "$(cat args.txt | tr '\\n' ' ')"),
        ("A=$(cat <<END\n--a 1\n--b 2\nEND\n)\n", "$A"),
        ("A=(0 1 2)\nI=1\n", "--a ${A[$I]} --b ${A[I+1]}"),
        ("declare -A A=([small]=1 [large]=2)\nS=small\n", "--a ${A[$S]} --b ${A[large]}"),
        ("A='--a 1'\n", "$(echo $A) --b 2"),
        ("A='--a'\nB=1\nC=\"$A \\\n  $B \\\n\\\n  $(echo --b) \\\n  $((1 + 1))\"\n", "$C"),
    ],
)
def test_what_functions_and_files_print_and_elements_of_arrays_are_put_in(
    before: str, words: str
) -> None:
    command = split_command(f"{before}{TRAIN.format(words)}")
    assert command.words == ("--a", "1", "--b", "2")


@pytest.mark.parametrize(
    ("before", "words", "variable"),
    [
        ("f() { nproc; }\n", "--a $(f)", "(…)"),
        ("f() { echo 1; hostname; }\n", "--a $(f)", "(…)"),
        ("f() { if command -v x; then echo 1; fi; }\n", "--a $(f)", "(…)"),
        ("", "--a $(cat args.txt)", "(…)"),
        ("f() { printf '%s' 1; }\n", "--a $(f)", "(…)"),
        ("A=(1 2)\n", "--a ${A[$SLURM_ARRAY_TASK_ID]}", "SLURM_ARRAY_TASK_ID"),
    ],
)
def test_what_only_running_it_would_tell_stays_unknown(
    before: str, words: str, variable: str
) -> None:
    command = split_command(f"{before}{TRAIN.format(words)}")
    assert command.program == "train.py"
    with pytest.raises(Undefined) as unknown:
        require_defined("--a", " ".join(command.words[1:]))
    assert unknown.value.variable == variable


LOOP = """A=1; B=0
while [[ $# -gt 0 ]]; do
  case $1 in
    --a) A="$2"; shift 2;;
    --b=*) B="${1#*=}"; shift;;
    --) shift; break;;
    *) echo "unknown $1"; exit 1;;
  esac
done
torchrun train.py --a $A --b $B
"""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [("", "--a 1 --b 0"), ("--a 3 --b=4", "--a 3 --b 4"), ("--a 3 -- --b=4", "--a 3 --b 0")],
)
def test_a_loop_over_arguments_is_followed(arguments: str, words: str) -> None:
    command = split_command(f"bash train.sh {arguments}", LaunchFiles({"train.sh": LOOP}))
    assert command.words == tuple(words.split())
    assert command.in_branches == ()


def test_options_that_nobody_gives_leave_the_defaults() -> None:
    loop = 'while getopts "a:" o; do case "$o" in a) A=$OPTARG;; esac; done\nA=${A:-1}\n'
    assert split_command(f"{loop}{TRAIN.format('--a $A')}").words == ("--a", "1")
    files = LaunchFiles({"train.sh": f"{loop}{TRAIN.format('--a $A')}"})
    assert split_command("bash train.sh -a 2", files).words == ("--a", "$A")


def test_defaults_that_decide_a_command_are_told_and_others_are_not() -> None:
    script = 'TP=${TP:-4}\nA="--tp $TP"\n: "${PP:=2}"\nlog=${LOG:-x}\n'
    assert split_command(f"{script}{TRAIN.format('$A --pp $PP')}").defaults == ("TP=4", "PP=2")
    wrapped = f'{script}srun bash -c "{TRAIN.format("$A --pp $PP")}"'
    assert split_command(wrapped).defaults == ("TP=4", "PP=2")
    files = LaunchFiles(environment={"TP": "8"})
    assert split_command(f"{script}{TRAIN.format('$A')}", files).defaults == ()


def test_doubts_about_the_text_of_another_shell_are_kept() -> None:
    script = 'A="--a 1"\nif command -v x; then A="$A --fp8"; fi\n'
    assert split_command(f'{script}srun bash -c "{TRAIN.format("$A")}"').in_branches


def test_values_of_the_request_go_before_the_script_and_that_before_its_defaults() -> None:
    def started(environment: dict[str, str]) -> Command:
        text = 'A=1\nB=${B:-2}\n: "${C:=3}"\nD="$D --more"\npython train.py --a $A --b $B --c $C $D'
        return split_command(text, LaunchFiles(environment=environment))

    assert started({}).words[:6] == ("--a", "1", "--b", "2", "--c", "3")
    sent = started({"A": "4", "B": "5", "C": "6", "D": "--own"})
    assert sent.words == ("--a", "4", "--b", "5", "--c", "6", "--own", "--more")


def test_what_the_scheduler_gave_goes_before_what_the_script_asked_for() -> None:
    text = "#SBATCH -N 16 --gpus-per-node=8\nsrun torchrun --nnodes $SLURM_NNODES train.py --a 1"
    command = split_command(text, LaunchFiles(environment={"SLURM_NNODES": "8"}))
    assert command.num_ranks == 64
    assert "SLURM_NNODES" in command.notes[0]
    assert "16" in command.notes[0]


@pytest.mark.parametrize("option", ["-N 2", "--nodes=2"])
def test_options_of_sbatch_go_before_those_of_its_script(option: str) -> None:
    train = "srun torchrun --nnodes $SLURM_NNODES --nproc_per_node 8 train.py --a 1\n"
    files = LaunchFiles({"job.sh": f"#!/bin/bash\n#SBATCH --nodes=4 --gpus-per-node=8\n{train}"})
    assert split_command(f"sbatch {option} job.sh", files).num_ranks == 16


def test_where_a_value_cannot_be_known_its_line_and_the_cure_are_named() -> None:
    text = "if probe; then\n  TP=4\nelse\n  TP=8\nfi\ntorchrun train.py --tp $TP"
    with pytest.raises(Undefined) as refused:
        require_defined("--tp", split_command(text).words[1])
    rule = with_reason(refused.value, text, LaunchFiles()).rule
    assert 'launch.environment {"TP"' in rule
    assert "line 6" in rule
    assert "line 2, 4" in rule


def test_a_script_that_has_arguments_asks_for_the_command_that_starts_it() -> None:
    branch = "if [ $1 = 7B ]; then N=28; elif [ $1 = 72B ]; then N=80; fi\ntorchrun train.py --n $N"
    for text in (branch, "torchrun train.py --n $1"):
        with pytest.raises(Undefined) as unknown:
            require_defined("--n", split_command(text).words[1])
        told = with_reason(unknown.value, text, LaunchFiles())
        assert "send the command that starts" in told.rule


def test_a_file_of_variables_that_was_not_sent_is_named() -> None:
    with pytest.raises(Undefined) as refused:
        require_defined("--a", split_command(SOURCED).words[1])
    assert "conf.sh" in with_reason(refused.value, SOURCED, LaunchFiles()).rule
    sent = split_command(SOURCED, LaunchFiles({"conf.sh": "A=5"}))
    assert sent.words == ("--a", "5", "--b", "7")


def test_a_loop_over_settings_starts_several_commands() -> None:
    with pytest.raises(Invalid, match="starts 2 commands"):
        split_command("for tp in 2 4; do torchrun train.py --tp $tp; done")


@pytest.mark.parametrize(
    "text",
    [
        "f() { f; }\nf",
        "A=(x x)\n" + 'A+=("${A[@]}")\n' * 60 + "python t.py ${A[@]}",
        "X=" + "ab" * 200 + "\n" + "Y=${X##*a*b*a*b*a*b*c}\n" * 3000,
        "while true; do x && y=1\n" * 1000,
        "x && y$X=1 || z=2\n" * 3000,
        "cat > a <<E\n" + "x\n" * 3000 + "E\n" + "cat a a > b\ncat b b > a\n" * 500,
        "eval " + "eval " * 9000 + "a",
        "".join(f"f{n}() {{ echo $(f{n + 1})$(f{n + 1}); }}\n" for n in range(20))
        + f"f20() {{ echo {'x' * 40_000}; }}\npython t.py $(f0)",
        f"A='{'x ' * 5000}'\n" + "B=$(echo $A)\n" * 3000,
        "f() { echo 1; }\n" + "A=$(f)\n" * 5000,
        "python t.py " + "$(echo " * 3000 + "a" + ")" * 3000,
        "set -- a\nwhile [ $# -gt 0 ]; do set -- a a; done\n" * 200,
        "bash -" + "c" * 100_000 + "! a\npython t.py",
        "sed '-" + "i" * 100_000 + "\n' a\npython t.py",
        "sh -o " * 10_000 + "\npython t.py",
        "srun -N 1 " * 10_000 + "torchrun t.py",
        "#SBATCH -N 1\n#SBATCH hetjob\n" * 1500 + "srun --het-group=0-999 " + "-x " * 9000 + "t.py",
        "#SBATCH hetjob\nsrun --het-group=" + "9" * 5000 + " torchrun t.py",
    ],
)
def test_no_script_takes_long_or_much(text: str) -> None:
    begun_s = time.thread_time()
    with suppress(Invalid):
        split_command(text)
    assert time.thread_time() - begun_s < 4
