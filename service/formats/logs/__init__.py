"""Training logs. `read` takes the log of a run, of any framework that it knows, and answers with
the step time.

The text is read line by line (`lines`). Each dialect (`megatron`, `nemo`, `torchtitan`, `maxtext`)
turns its lines into steps (`steps`). Of these `step_selection` keeps the ones that say how long a
step takes, and `speed_regimes` finds where the speed changed for good. `reading` puts the answer
together. `formats.megatron` reads the question that a run answers off the arguments in its log;
`nemo_parameters` first puts those of NeMo into the names of today's Megatron. `devices` finds the
accelerators that a log names, `failure` how a run ended, and `foreign` the trainers whose logs are
not read.

To add a dialect:
1. Write a module with `find(log: Log) -> Findings`, as `torchtitan` has it: look for a mark that
   all step lines have, add a Step for each, and call `add_unread` for lines that only look like it.
2. In `reading`, enter it in `Framework` (a value of the API), in `_FINDERS` and, if it prints no
   step times, in `_UNITS`; if logs have the run's arguments, enter their reader in `_ARGUMENTS`.
3. Say in service.learning.log_agreement which stacks print it.
4. Test it with a real log. No pattern may backtrack without a limit: bound every repetition.
"""

from service.formats.logs.lines import Unread
from service.formats.logs.reading import (
    FRAMEWORKS,
    Framework,
    Reading,
    RunArguments,
    Unit,
    read,
    read_arguments,
)

__all__ = [
    "FRAMEWORKS",
    "Framework",
    "Reading",
    "RunArguments",
    "Unit",
    "Unread",
    "read",
    "read_arguments",
]
