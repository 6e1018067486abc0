"""What every request is about: a model, a cluster, a workload and a stack."""

from __future__ import annotations

from service.schemas.architecture import Model
from service.schemas.cluster import ClusterForm
from service.schemas.stack import StackForm
from service.schemas.wire import Wire
from service.schemas.workload import WorkloadFields


class Question(Wire):
    model: Model
    """A name of /v1/catalog/architectures, a Hugging Face config.json as it is, or the shape."""
    cluster: ClusterForm
    """A name of /v1/catalog/clusters or /v1/catalog/chips with a number of chips, or a chip and its links."""
    workload: WorkloadFields
    stack: StackForm
    """A name of /v1/catalog/stacks, or one with some of its abilities changed."""
