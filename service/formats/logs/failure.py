"""Messages in a log which say that a run ran out of memory, on a device or on a host, or that it
crashed."""

from __future__ import annotations

import re

from service.formats.logs.lines import Log
from shardwright.secrets import mask_secrets

OUT_OF_MEMORY = re.compile(
    r"(?<!ray\.exceptions\.)(?<!java\.lang\.)OutOfMemoryError|hipErrorOutOfMemory"
    # PyTorch, TransformerEngine, Triton, NCCL: the runtime, what failed, its number, the reason
    r"|(?i:\b(?:CUDA|HIP|NPU|XPU|MUSA)\]?(?: (?:driver|runtime|failure|error)){0,2}"
    r"(?: \(?\d{1,6}\)?)? ?:? '?out of memory)"
    r"|Error out of memory at line \d"  # bitsandbytes
    r"|CUDA_ERROR_OUT_OF_MEMORY|OUT_OF_DEVICE_MEMORY|cudaErrorMemoryAllocation"
    r"|(?:CU|HIP|ROC)(?:BLAS|DNN|SOLVER)_STATUS_ALLOC_FAILED"
    r"|RESOURCE_EXHAUSTED: (?:XLA|Out of memory|Ran out of memory|Attempting to"
    r" (?:allocate|reserve)|Error allocating"
    r"|Error loading program|Failed to allocate)"
    r"|Ran out of memory in memory space"
)
"""Messages that a device ran out of memory."""

HOST_OUT_OF_MEMORY = re.compile(
    # Slurm slurmd/slurmstepd/mgr.c, srun/task_state.c; the kernel mm/oom_kill.c; Kubernetes; PBS;
    # LSF; Ray
    r"[Dd]etected \d{1,6} oom[_-]kill event|Exceeded (?:step|job) memory limit"
    r"|task[ s]{1,2}[\d,\[\]-]{1,60}: Out Of Memory"
    r"|[Oo]ut of memory: Kill(?:ed)? process|oom-kill:constraint=|\bOOMKilled\b"
    r"|PBS: job killed: (?:v?mem|cput?mem) |TERM_MEMLIMIT"
    r"|ray\.exceptions\.OutOfMemoryError"
    # PyTorch c10/core/impl/alloc_cpu.cpp; the C library, C++, Python and NumPy
    r"|DefaultCPUAllocator: (?:can't allocate|not enough) memory|\[Errno 12\] Cannot allocate"
    r"|std::bad_alloc|(?<![\w.])(?<!except )(?:numpy\.[\w.]{1,40}\.)?(?:_Array)?MemoryError\b"
)
"""Messages that the memory of a host, or a share of it, was full: of a scheduler or a kernel that
ended processes, or of a process that got no more. It has nothing to do with that of a device."""

CRASHED = re.compile(
    r"Traceback \(most recent call last\)|ChildFailedError|Fatal Python error|Segmentation fault"
    r"|terminate called after|exited on signal|srun: error:|slurmstepd: error:"
)
"""The last words of a process that failed."""

_FRAME_OF_EVALUATION = re.compile(
    r"File \"[^\"\n]{1,400}\", line \d{1,9}, in"
    r" (?:\w{0,80}_)?(?:eval(?:uate|uation)?|validat(?:e|ion)|predict(?:ion)?)(?:_\w{0,80})?\r?$",
    re.MULTILINE,
)
"""A frame of a traceback within an evaluation: `evaluation_loop` and `prediction_step` of
transformers, `evaluate_and_print_results` of Megatron, `_run_validation`."""
_SAVES_TOO = "_save_"  # as _maybe_log_save_evaluate of transformers does
_TRACEBACK = "Traceback (most recent call last)"
_TRACEBACK_REACH = 30_000  # characters: a hundred frames

_EXCEPTION = re.compile(
    r"(?:[A-Za-z_]\w{0,80}\.){0,8}[A-Z]\w{0,80}(?:Error|Exception|Interrupt)"
    r"(?::\s.{0,400}|:?\s{0,9}$)"
)
"""The last line of a Python traceback."""
_OTHER_LAST_WORDS = re.compile(
    r"(?:Fatal Python error|Segmentation fault|terminate called after|exited on signal|srun: error:"
    r"|slurmstepd: error:|Watchdog caught collective operation timeout).{0,400}"
)
_OF_THE_LAUNCHER = re.compile(
    r"ChildFailedError|SignalException|torch[./]distributed[./]elastic|CalledProcessError"
    r"|Exited with exit code"
)
"""Words in a launcher's last message, which only says that one of its processes failed."""
_OF_A_LOST_PEER = re.compile(
    r"Dist(?:Backend|Network|Store)Error|[Cc]onnection (?:reset|closed|aborted)|Broken ?[Pp]ipe"
    r"|remote process exited|ncclRemoteError|NCCL communicator was aborted|TCPStore"
    r"|[Cc]oordination service|[Hh]eartbeat"
)
"""Words of a process whose connection to another one broke, mostly because that one had failed."""
_ENDED = re.compile(
    # Slurm slurmd/slurmstepd/req.c, which also cancels the other tasks once one has failed; PBS;
    # LSF; torchrun
    r"CANCELLED AT [^ ]{1,40} (?:\*\*\*|DUE TO (?:TIME LIMIT|PREEMPTION))"
    r"|PBS: job killed: walltime|TERM_(?:RUNLIMIT|PREEMPT|OWNER)"
    r"|\bKeyboardInterrupt\b|[Rr]eceived SIG(?:TERM|INT)\b|death signal, shutting down"
    # Megatron-LM; transformers, twice; torchtitan; Lightning
    r"|\[after training is done\]|['\"]train_runtime['\"]|Training completed|`Trainer\.fit` stopped"
)
"""Messages that a person or a scheduler stopped the run, or that it trained to its end."""
_IGNORED_EXCEPTION = re.compile(
    r"Exception ignored in.{0,1000}\n(?:.{0,100}Traceback \(most recent call last\).{0,100}\n)?"
    r"(?:(?:\[[^\]\n]{1,80}\]:?|\d{1,6}:)?[ \t]{2}.{0,2000}\n){0,200}.{0,2000}"
)
"""An exception in the clean-up of an object, up to the line that names it (Python/errors.c)."""
_LINE_REACH = 2000  # characters of a line that are looked at
_MAX_QUOTED = 300  # an error and its reason; what follows is a trace


def ending(text: str, last_line: int) -> str:
    """Returns the end of a log, from the line of its last step on, without the exceptions that
    Python ignored as it cleaned up. `last_line` is 0 for a log without a step."""
    lines = text.split("\n")[max(0, last_line - 1) :]
    return _IGNORED_EXCEPTION.sub("", "\n".join(lines))


def ends_in_crash(end: str) -> bool:
    """Returns whether the end of a log has the last words of a process that failed. A run that was
    stopped from outside, or had trained to its end, did not fail, whatever its processes say as
    they end."""
    if CRASHED.search(end) is None:
        return False
    lines = [line for line in _lines(end) if not _OF_THE_LAUNCHER.search(line)]
    reasons = (line for line in lines if _ENDED.search(line) or _says_why(line))
    return _ENDED.search(next(reasons, "")) is None


def ran_out_in_evaluation(text: str) -> bool:
    """Returns whether the last traceback that ends with a device out of memory is of an
    evaluation."""
    for match in reversed([*OUT_OF_MEMORY.finditer(text)]):
        end = match.start()
        start = text.rfind(_TRACEBACK, max(0, end - _TRACEBACK_REACH), end)
        if start >= 0:
            frames = _FRAME_OF_EVALUATION.finditer(text, start, end)
            return any(_SAVES_TOO not in frame.group() for frame in frames)
    return False


def last_error(text: str) -> str | None:
    """Returns the last line that says why a process failed, as an answer may quote it; None where
    no line does. Errors of processes that lost a peer, and then a launcher's report that one of its
    processes failed, are taken only where there is nothing else. A Python exception is preferred
    to other messages."""
    last_of_rank: dict[int, str] = {}  # the smaller the rank, the more the words explain
    for line in reversed(_lines(text)):
        for rank, pattern in enumerate((_EXCEPTION, _OTHER_LAST_WORDS), start=_rank(line)):
            match = pattern.search(line)
            if match:
                last_of_rank.setdefault(rank, match.group())
        if 0 in last_of_rank:
            break
    return _quoted(last_of_rank[min(last_of_rank)]) if last_of_rank else None


def _rank(line: str) -> int:
    """Returns the rank of an exception in a line, by who says it. Other last words have the next
    rank, so ranks are two apart."""
    if _OF_THE_LAUNCHER.search(line):
        return 4
    return 2 if _OF_A_LOST_PEER.search(line) else 0


def _lines(text: str) -> list[str]:
    return [line[:_LINE_REACH] for line in Log(text).text.splitlines()]


def _says_why(line: str) -> bool:
    return _EXCEPTION.search(line) is not None or _OTHER_LAST_WORDS.search(line) is not None


def _quoted(text: str) -> str:
    """Returns a text as an answer quotes it: without secrets and control characters, and
    shortened."""
    masked = mask_secrets(text.strip())
    shown = "".join(character for character in masked if character.isprintable())
    return shown if len(shown) <= _MAX_QUOTED else f"{shown[:_MAX_QUOTED]}…"
