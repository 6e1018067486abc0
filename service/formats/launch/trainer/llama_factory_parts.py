"""Reads which of a model's own parameters LLaMA-Factory 0.9.5 trains (model/adapter.py;
v1/plugins/model_plugins/peft.py). A *part* is a layer, the embedding or the head."""

from __future__ import annotations

from models.spec import catalogue
from models.spec.architecture import MAX_LAYERS
from service.formats.launch.trainer.models import named_model
from service.formats.launch.trainer.trained_parts import TrainedParts, end_layers, parts_of_modules
from service.formats.launch.trainer.trainer_settings import TRAINED, TrainerSettings
from service.formats.settings.settings import Settings


def put_trained_layers(trainer: TrainerSettings, settings: Settings, prefix: str = "") -> None:
    """Sets in `trainer` that the last `freeze_trainable_layers` layers are trained, or the first
    ones where that is negative, or with use_llama_pro as many at equal distances. `prefix` begins
    the names of the settings."""
    number = f"{prefix}freeze_trainable_layers"
    extra = f"{prefix}freeze_extra_modules"
    modules = f"{prefix}freeze_trainable_modules"
    count = settings.integer(number, least=-MAX_LAYERS) or 0
    parts = parts_of_modules(_names_in(settings.given.get(extra)))
    if parts.unknown:
        reason = "these modules, which are trained too, are neither the embedding nor the head"
        settings.add_reservation(extra, reason, "leave them out to judge the rest")
    parts.layers = set(end_layers(count))
    if settings.given.get("use_llama_pro") and not _spread_layers(settings, parts, count):
        return  # which layers are trained is not known, and a reservation says so
    if _names_in(settings.value(modules)) not in ([], ["all"]):
        trainer.assumed.append(f"{modules}: layers that are trained in part are counted as whole")
    trainer.put(TRAINED, parts.fields, source_name=number)


def _spread_layers(settings: Settings, parts: TrainedParts, count: int) -> bool:
    """Sets in `parts` the `count` layers at equal distances that LLaMA Pro trains. Returns False,
    and adds a reservation, where the model's number of layers is not known or no multiple of
    `count`."""
    model = named_model("model_name_or_path", str(settings.given.get("model_name_or_path")))
    layers = 0 if model.id is None else catalogue.architecture(model.id).num_layers
    if layers and count > 0 and layers % count == 0:
        stride = layers // count
        parts.layers = set(range(stride - 1, layers, stride))  # the last of each `stride` layers
        return True
    reason = "which layers are trained follows from how many the model has"
    cure = "give workload.trained.layers"
    settings.add_reservation("use_llama_pro", reason, cure, answered_by="workload.trained")
    return False


def put_one_block(trainer: TrainerSettings, settings: Settings) -> None:
    """Sets in `trainer` that one layer is trained: BAdam trains one layer at a time, each with
    an optimizer of its own (arXiv 2404.02827). Adds a reservation for its other modes."""
    if settings.text("badam_mode") == "layer":
        trainer.put(TRAINED, TrainedParts({0}).fields, source_name="use_badam")
        trainer.assumed.append(
            "use_badam: the first layer is counted as the one that is trained, which backward"
            " reaches last; steps for later layers take less time"
        )
    else:
        reason = "which parameters are trained is not described"
        cure = "judge badam_mode layer, or full fine-tuning, which takes more"
        settings.add_reservation("badam_mode", reason, cure, answered_by="workload.trained")


def _names_in(value: object) -> list[str]:
    """Returns the names in a list, or in a text that commas divide."""
    words = value if isinstance(value, list) else str(value or "").split(",")
    return [str(word).strip() for word in words if str(word).strip()]
