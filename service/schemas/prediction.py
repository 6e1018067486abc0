"""Requests to predict given layouts, and the answers. Parts of answers that others share are here
too."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, AwareDatetime, Field, WithJsonSchema, model_validator

from models.cost.predictions import MEMORY_TERMS, TIME_TERMS, in_gib
from models.errors import Invalid
from models.prediction.coverage import EvidenceLevel
from models.prediction.prediction import Prediction
from models.spec.hardware import Cluster
from service.schemas.launch import LaunchAnswer, LaunchUnsaid
from service.schemas.launch_form import LaunchRead
from service.schemas.layout import LayoutFields
from service.schemas.learned import Learned
from service.schemas.micro_batch import LayoutForm, layouts_in_sequences
from service.schemas.patience import Patience
from service.schemas.question import PinnedQuestion
from service.schemas.reservation import ReservationAnswer
from service.schemas.switches import SwitchAnswer
from service.schemas.wire import Document, Page

MAX_LAYOUTS = 1000  # an answer has some KB for each


class PredictionRequest(PinnedQuestion, Patience):
    """Give `layout` or `layouts`."""

    layout: LayoutForm | None = None
    layouts: (
        Annotated[
            list[LayoutFields],
            Field(min_length=1, max_length=MAX_LAYOUTS),
            AfterValidator(layouts_in_sequences),
        ]
        | None
    ) = None

    @model_validator(mode="after")
    def _require_one_form(self) -> Self:
        """Raises Invalid unless exactly one of layout and layouts is given."""
        if (self.layout is None) == (self.layouts is None):
            raise Invalid("layout", None, "give either layout or layouts")
        return self

    def layouts_by_field(self) -> dict[str, LayoutFields]:
        """Returns the layouts by their field in the request, such as "layouts[2]"."""
        if self.layout is not None:
            return {"layout": self.layout}
        return {f"layouts[{index}]": layout for index, layout in enumerate(self.layouts or [])}


def _terms_schema(meaning: dict[str, str], unit: str) -> WithJsonSchema:
    """Returns the JSON schema of an object with a number for each term. `meaning` describes each
    term."""
    properties = {
        name: {"type": "number", "description": f"{text}; {unit}"} for name, text in meaning.items()
    }
    return WithJsonSchema({"type": "object", "properties": properties, "required": [*meaning]})


_MEMORY_GIB = {in_gib(name): text for name, text in MEMORY_TERMS.items()}
TimeTerms = Annotated[dict[str, float], _terms_schema(TIME_TERMS, "seconds of a step")]
MemoryTerms = Annotated[dict[str, float], _terms_schema(_MEMORY_GIB, "GiB on the fullest stage")]


class ByConvention(Document):
    """Attention FLOPs counted in two ways; recompute is counted in neither."""

    causal: float
    """Over the keys a causal query sees on average."""
    full: float
    """Over the whole sequence or window."""


def speed_intervals(predicted: Any) -> dict[str, Any]:
    """Returns the 80% intervals of MFU and tokens per second of a prediction, or of a choice of a
    cluster. Both are inversely proportional to the step time: their lower ends belong to its upper
    end."""
    slowest = predicted.step_time_s / predicted.step_time_high_s
    quickest = predicted.step_time_s / predicted.step_time_low_s
    return {
        "mfu_low": {name: mfu * slowest for name, mfu in predicted.mfu.items()},
        "mfu_high": {name: mfu * quickest for name, mfu in predicted.mfu.items()},
        "tokens_per_s_low": predicted.tokens_per_s * slowest,
        "tokens_per_s_high": predicted.tokens_per_s * quickest,
    }


class TermBasis(Document):
    ground: EvidenceLevel
    """"measured" on this chip and stack, "inherited" from the chip's generation or the stack, or
    "data_sheet": no run of either exercised it."""
    scope: str
    """The scope in which the runs behind it ran."""
    runs: int
    sources: int | None
    """Number of published sources and tenants that these runs are of; null under a version that
    does not say, as one of an earlier release."""


class ProvenanceAnswer(Document):
    """The grounds of a prediction."""

    grade: EvidenceLevel
    """The weakest ground among the terms that make at least a twentieth of the step."""
    terms: dict[str, TermBasis]
    """Grounds of every term of `time` and `memory_gib` that is not zero."""
    outside: list[str]
    """Quantities beyond those of every run behind the profile, or of every one on the chip's
    generation."""


class PredictedLayout(Document):
    """One layout under the model. Times are of one step."""

    layout: LayoutFields
    step_time_s: float
    step_time_low_s: float
    """With `step_time_high_s` a central 80% interval."""
    step_time_high_s: float
    tokens_per_s: float
    tokens_per_s_low: float
    """At `step_time_high_s`."""
    tokens_per_s_high: float
    tokens_per_s_per_chip: float
    tflops_per_chip: ByConvention
    mfu: ByConvention
    mfu_low: ByConvention
    """At `step_time_high_s`."""
    mfu_high: ByConvention
    num_micro_batches: int
    """Run by each data-parallel rank in a step."""
    micro_batch_group: int | None = None
    """Micro-batches that pass a chunk of a stage before the next chunk, under an interleaved
    schedule; Megatron-Core's microbatch_group_size_per_vp_stage, which is pp unless it is set."""
    layers_per_chunk: list[int]
    """Layers of each of pp times virtual_stages chunks, in the order of the model: chunk i lies on
    stage i modulo pp; under zero_bubble_v from pp on on stage 2·pp - 1 - i, under dualpipe on
    stages i and pp - 1 - i."""
    time: TimeTerms
    memory_gib: MemoryTerms
    allocated_gib: float
    """GiB that tensors take on the fullest stage."""
    reserved_gib: float
    """GiB that the framework holds for them, fragmentation included: the peak that it reports
    itself."""
    needed_gib: float
    """GiB that the device must have: `reserved_gib`, and what the runtime and communication
    libraries take."""
    needed_low_gib: float
    """With `needed_high_gib` a central 80% interval."""
    needed_high_gib: float
    usable_gib: float
    """GiB of the device's memory that a program can use."""
    memory_stage: int
    """The fullest pipeline stage, from 0."""
    host_gib: float
    """GiB that are offloaded to host memory, for a device of the stage with most."""
    host_usable_gib: float | None
    """A device's share of its host's memory; null where that is not known, and nothing is held
    against it."""
    fits: bool
    """True where `needed_gib` is within `usable_gib`, and `host_gib` within `host_usable_gib`."""
    fit_probability: float
    """Probability that the device needs no more than `usable_gib`, and its host no more than
    `host_usable_gib`, by how far measured peaks were from their predictions."""
    provenance: ProvenanceAnswer

    @classmethod
    def of(cls, prediction: Prediction, cluster: Cluster) -> Self:
        """Returns the prediction as an answer, with the intervals of its speeds."""
        layout = LayoutFields.shown(prediction.layout, on_torus=cluster.is_torus)
        return cls.from_attributes(prediction, layout=layout, **speed_intervals(prediction))


class ProfileUsed(Document):
    id: str
    version: int


class EntryUsed(Document):
    """A name and what it stood for."""

    name: str
    source: Literal["shipped", "registered", "given", "huggingface"]
    """Origin of the entry: the shipped catalogue, registered here, given in the request, or read
    from a config.json in it."""
    version: int | None = None
    """Version of a registered entry."""


class Parameters(Document):
    """Parameters of the language model without multi-token-prediction modules, as model cards
    count; `active` is what one token visits."""

    total: int
    active: int
    mtp: int
    """In multi-token-prediction modules, beside `total`."""
    encoder: int = 0
    """In the encoder of images and its projector, beside `total`."""


class ArchitectureUsed(EntryUsed):
    parameters: Parameters
    num_layers: int
    text_tower: bool
    """True for a multimodal model whose vision parameters are not counted."""
    model: dict[str, Any] | None = None
    """The model layer by layer, to change and ask about."""


class Link(Document):
    """One step outwards in the cluster: domains of `domain` devices, joined at `gb_s` per device.
    Of a torus' dim: a ring, or a line where its ends are not joined."""

    name: str
    kind: Literal["switch", "ring", "line"]
    scale: Literal["up", "out"]
    domain: int
    gb_s: float


class FabricUsed(EntryUsed):
    links: list[Link]


class StackUsed(EntryUsed):
    changes: dict[str, Any]


class CatalogUsed(Document):
    chip: EntryUsed
    fabric: FabricUsed
    architecture: ArchitectureUsed
    stack: StackUsed


class MfuPeak(Document):
    """The peak that MFU is a fraction of: the chip's dense peak in the format of the matrix
    multiplications."""

    dtype: str
    tflops_per_chip: float


class Conventions(Document):
    mfu: dict[str, str]
    """Explanations of each key of `mfu` and `tflops_per_chip`: what it counts."""
    mfu_peak: MfuPeak
    interval: str
    units: str


class StoredAnswer(Document):
    """An answer that can be fetched again."""

    id: str
    created_at: AwareDatetime


class Grounds(Document):
    """The grounds of an answer."""

    request: dict[str, Any]
    """The request as it was understood: defaults filled in, names with the version they stood
    for."""
    profile: ProfileUsed
    catalogue: CatalogUsed
    conventions: Conventions
    assumptions: list[str]
    """Sentences on what the request left open and the service settled."""
    switches: list[SwitchAnswer] = []
    """Switches of the software, for one layout: the recommended one, or the first that is predicted
    or compared."""
    learned: Learned | None = None
    """The reports that moved the prediction of that layout, and by how much; null where the version
    in use rests on no reports, or was made by an earlier release."""


class Basis(Grounds, StoredAnswer):
    """An answer that is kept, and what it rests on."""


class AnswerSummary(StoredAnswer):
    location: str
    profile: ProfileUsed
    request: dict[str, Any]
    """The question itself: model, cluster, workload and stack."""


class AnswerPage(Page):
    items: list[AnswerSummary]


class RecommendationResult(Document):
    """The recommended layout; in answers that were stored before `layouts` were named by their
    positions, the fastest."""

    chips_used: int
    layout_summary: str | None
    """In one line, as in `reasons`."""
    step_time_s: float
    mfu: ByConvention
    fit_probability: float | None
    exact: bool
    """The search came to its end (`certificate.exact`)."""
    faster_on: int | None = None
    """The number of chips that is faster, in answers that were stored before they used fewer chips
    where those are faster."""


class RecommendationSummary(AnswerSummary):
    result: RecommendationResult | None


class RecommendationPage(Page):
    items: list[RecommendationSummary]


class OutOfMemoryRun(Document):
    """A report on the same chip and stack, of the same model."""

    report_id: str
    measured_at: AwareDatetime
    layout: LayoutFields
    needed_gib: float
    """GiB that the run needed, as the profile in use predicts it."""


class PredictionAnswer(Basis):
    layouts: list[PredictedLayout]
    """In the order of the request."""
    out_of_memory: list[OutOfMemoryRun] = []
    """Layouts of the same model that were reported out of memory on this chip and stack, but for
    those that a later run disproves."""
    warnings: list[str] = []
    """Warnings: what was probably not meant (a batch in tokens, say), then each layout that needs
    as much memory as one of those runs."""
    launch: LaunchAnswer | LaunchUnsaid | None = None
    """The launch of the first layout in the words of its framework, or why these have none for it;
    null for stacks without a launch format."""
    launch_read: LaunchRead | None = None
    """The reading of the launch configuration, where the request has one."""
    reservations: list[ReservationAnswer] = []
    """Settings of the launch that could change the answer and were not understood: all else here
    is given as if they were not there. The first, of `launch_read.unread_count`."""
