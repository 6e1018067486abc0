"""Training logs: `read` takes the log of a run, of any framework it knows, and answers with the
step time.

lines   what wraps a log: colours, progress bars, ranks        megatron, nemo, torchtitan, maxtext
one dialect each steps   what a dialect finds, and restarts                     typical   which
steps say how long a step takes reading the answer
megatron_arguments   the question that a log answers nemo_parameters   NeMo's configuration as
Megatron's           levels    where the speed changed for good
"""

from service.formats.logs.lines import Unread
from service.formats.logs.reading import FRAMEWORKS, Framework, Reading, Unit, read

__all__ = ["FRAMEWORKS", "Framework", "Reading", "Unit", "Unread", "read"]
