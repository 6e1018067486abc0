"""Training logs. `read` takes the log of a run, of any framework that it knows, and answers with
the step time.

The text is read line by line (`lines`). A *dialect* is the form in which one framework prints its
steps. Each dialect (`megatron`, `nemo`, `torchtitan`, `maxtext`)
turns its lines into steps (`steps`). Of these `step_selection` keeps the ones that say how long a
step takes, and `speed_regimes` finds where the speed changed for good. `reading` puts the answer
together. `formats.megatron` reads the question that a run answers off the arguments in its log;
`nemo_parameters` first puts those of NeMo into the names of today's Megatron. `devices` finds the
accelerators that a log names, `failure` how a run ended, and `foreign` the trainers whose logs are
not read.
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
