"""The question that every request asks about: a model, a cluster, a workload and a stack."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from service.schemas.architecture import Model
from service.schemas.cluster import ClusterForm
from service.schemas.stack import StackForm
from service.schemas.wire import Name, Wire
from service.schemas.workload import WorkloadFields


class ProfileWanted(Wire):
    """A version of a profile, as answers name it."""

    id: Name = "default"
    version: Annotated[int, Field(ge=1, le=2**31 - 1)]


class Question(Wire):
    model: Model
    """A name of /v1/catalog/architectures, a Hugging Face config.json as it is, the shape, or the
    list of layers. Of a registered name the latest version is meant; `name@2` is its second."""
    cluster: ClusterForm
    """A name of /v1/catalog/clusters or /v1/catalog/chips with a number of chips, or a chip and its
    links. Of a registered name the latest version is meant; `name@2` is its second."""
    workload: WorkloadFields
    stack: StackForm
    """A name of /v1/catalog/stacks, or one with some of its abilities changed."""


class PinnedQuestion(Question):
    profile: ProfileWanted | None = None
    """The version to predict with; without it the active one."""
