"""The encoders of images of Hugging Face's vision-language models, from their `vision_config`.

A *tower* is an encoder with its projector, and a *patch* a square of an image: the encoder's own
token. A reader is named for the vision transformer that it reads. It gets the config of the model
(`whole`), the vision_config inside of it, and the hidden size of the language model. Sizes that a
config leaves out are those of its class in transformers, which `vision_classes.json` has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from models.errors import Invalid, Unsupported
from models.spec.encoder import Projector
from models.spec.layer import Layer
from service.formats.huggingface.config import Config, shown
from service.formats.huggingface.data import data
from service.formats.huggingface.towers import (
    Tower,
    equal_layers,
    merged_patches,
    patches_of,
    projector_of,
    shuffled_patches,
    side_of,
)

Read = Callable[[Config, Config, int], Tower]
"""Reads a tower from the whole config, its vision_config, and the hidden size of the language
model."""


def is_known(config: Mapping[str, object]) -> bool:
    """Returns True where the config has an image encoder of a supported family."""
    model_type = str(config.get("model_type"))
    if model_type not in _DEFAULT_CLASSES:
        return model_type in _READERS
    # The reader of these families depends on the class of the encoder inside.
    vision = config.get("vision_config")
    if not isinstance(vision, Mapping):
        return False
    kind = str(vision.get("model_type") or _DEFAULT_CLASSES[model_type])
    return kind in data("vision_classes")["classes"]


def read(config: Mapping[str, object], text_hidden_size: int) -> Tower:
    """Returns the image encoder that a config describes, with its projector. Raises Unsupported
    for an unknown family, and Invalid without a vision_config."""
    whole = Config(config, str(config.get("model_type")))
    reader = _READERS.get(whole.model_type)
    if reader is not None and config.get("vision_config") is None:
        rule = "is required for an encoder: give it beside the rest, or leave encoder out"
        raise Invalid("vision_config", None, rule)
    if reader is None:
        known = ", ".join(sorted(_READERS))
        missing = f"the encoder of this family; those of {known} are read"
        raise Unsupported("model_type", shown(config.get("model_type")), missing)
    vision = whole.inner("vision_config")
    # Families in _DEFAULT_CLASSES may have one of several encoders, by the model_type inside.
    if whole.model_type not in _DEFAULT_CLASSES:
        defaults = data("vision_classes")["families"][whole.model_type]
        return reader(whole, vision.assuming(**defaults), text_hidden_size)
    kind = str(vision.get("model_type") or _DEFAULT_CLASSES[whole.model_type])
    classes = data("vision_classes")["classes"]
    if kind not in classes:
        rule = f"this encoder; those of {', '.join(classes)} are read"
        raise Unsupported(vision.where("model_type"), kind, rule)
    vision = Config(vision.values, kind, path=vision.path).assuming(**classes[kind])
    return reader(whole, vision, text_hidden_size)


def _patch_elements(vision: Config) -> int:
    """Returns the number of input values of a square patch of an image."""
    return vision.size("num_channels") * side_of(vision, "patch_size") ** 2


def _qwen(
    vision: Config,
    layers: tuple[Layer, ...],
    *,
    hidden: int,
    output: int,
    norm: int,
    other_parameters: int = 0,
) -> Tower:
    """Returns an encoder of Qwen, whose projector merges a square of patches into a token of
    `output` elements, behind a norm with `norm` parameters. A pixel of a patch has values of
    several frames of a video."""
    merged = vision.size("spatial_merge_size") ** 2
    values_of_pixel = vision.size("in_channels") * vision.size("temporal_patch_size")
    return Tower(
        hidden_size=hidden,
        layers=layers,
        patches_per_token=merged,
        patch_elements=values_of_pixel * side_of(vision, "patch_size") ** 2,
        other_parameters=other_parameters,
        projector=projector_of(merged * hidden, merged * hidden, output, norm=norm),
    )


def _qwen2_vl(whole: Config, vision: Config, text_hidden: int) -> Tower:
    """Returns the encoder of Qwen2-VL."""
    # In this family hidden_size is the language model's, and embed_dim is the encoder's.
    hidden = vision.size("embed_dim")
    width = int(hidden * vision.number("mlp_ratio"))
    layers = equal_layers(vision, hidden=hidden, width=width, heads="num_heads", depth="depth")
    output = vision.size("hidden_size")
    # The norm has a weight and a bias.
    return _qwen(vision, layers, hidden=hidden, output=output, norm=2 * hidden)


def _qwen2_5_vl(whole: Config, vision: Config, text_hidden: int) -> Tower:
    """Returns the encoder of Qwen2.5-VL. Its attention is within windows of `window_size`
    pixels, except in a few layers."""
    hidden = vision.size("hidden_size")
    layers_of = partial(
        equal_layers, vision, heads="num_heads", depth="depth", gated=True, rms=True
    )
    full = layers_of()
    window = (vision.size("window_size") // side_of(vision, "patch_size")) ** 2  # in patches
    local = layers_of(sliding_window=window, chunked_attention=True)  # windows do not overlap
    sees_all = vision.indices("fullatt_block_indexes", len(full))
    layers = tuple(full[index] if index in sees_all else local[index] for index in range(len(full)))
    output = vision.size("out_hidden_size")
    # The norm is RMS, with a weight alone.
    return _qwen(vision, layers, hidden=hidden, output=output, norm=hidden)


def _qwen3_5(whole: Config, vision: Config, text_hidden: int) -> Tower:
    """Returns the encoder of Qwen3.5, with learned positions."""
    hidden = vision.size("hidden_size")
    return _qwen(
        vision,
        equal_layers(vision, heads="num_heads", depth="depth"),
        hidden=hidden,
        output=vision.size("out_hidden_size"),
        norm=2 * hidden,  # weight and bias
        # The bias of the patches, and learned positions.
        other_parameters=hidden + vision.size("num_position_embeddings") * hidden,
    )


def _qwen3_vl(whole: Config, vision: Config, text_hidden: int) -> Tower:
    """Returns the encoder of Qwen3-VL. The outputs of some inner layers, the taps, are projected
    beside the last one's (DeepStack)."""
    plain = _qwen3_5(whole, vision, text_hidden)
    taps = len(vision.indices("deepstack_visual_indexes", len(plain.layers)))
    last = plain.projector
    merged = plain.patches_per_token * plain.hidden_size
    # A projector of a tap has its norm behind the merge, where vectors are wider: it has the
    # vectors of the last layer's, with this norm (weight and bias) in place of the narrow one.
    vectors = last.vectors - 2 * plain.hidden_size + 2 * merged
    projector = Projector(
        matrices=last.matrices * (1 + taps), vectors=last.vectors + vectors * taps
    )
    return replace(plain, projector=projector)


def _gemma3(whole: Config, vision: Config, text_hidden: int) -> Tower:
    """Returns a SigLIP encoder whose patches are averaged to a fixed number of tokens for each
    image."""
    hidden = vision.size("hidden_size")
    tokens = whole.size("mm_tokens_per_image", 256)
    return _siglip(
        vision,
        merged=merged_patches(vision, tokens),
        projector=projector_of(hidden, text_hidden, bias=False, norm=hidden),
        tokens=tokens,
    )


def _siglip(vision: Config, merged: int, projector: Projector, tokens: int | None) -> Tower:
    """Returns a SigLIP encoder. `merged` is the number of patches that make a token, and
    `tokens` the number of tokens of an image."""
    hidden = vision.size("hidden_size")
    width = vision.size("intermediate_size")
    other = hidden + patches_of(vision) * hidden + 2 * hidden  # biases, positions, norm
    if vision.flag("vision_use_head"):
        # A learned query with four projections, a norm, and a network of two matrices; all biased.
        other += hidden + 4 * hidden * (hidden + 1) + 2 * hidden
        other += 2 * hidden * width + width + hidden
    return Tower(
        hidden_size=hidden,
        layers=equal_layers(vision),
        patches_per_token=merged,
        patch_elements=_patch_elements(vision),
        other_parameters=other,
        projector=projector,
        tokens_per_image=tokens,
    )


def _gemma4(whole: Config, vision: Config, text_hidden: int) -> Tower:
    """Returns the encoder of Gemma 4. `text_hidden` is the hidden size of the language model."""
    hidden = vision.size("hidden_size")
    head_dim = vision.size("head_dim")
    return Tower(
        hidden_size=hidden,
        layers=equal_layers(
            vision,
            bias=False,
            gated=True,
            rms=True,
            num_norms=4,
            qk_norm=True,
            num_key_value_heads=vision.size("num_key_value_heads"),
            head_dim=head_dim,
            v_head_dim=head_dim,
        ),
        patches_per_token=vision.size("pooling_kernel_size") ** 2,
        patch_elements=3 * side_of(vision, "patch_size") ** 2,  # of three colours
        # Embeddings of rows and of columns.
        other_parameters=2 * vision.size("position_embedding_size") * hidden,
        projector=projector_of(hidden, text_hidden, bias=False),
        # Without this key images may have any size.
        tokens_per_image=whole.size_or_none("vision_soft_tokens_per_image")
        if whole.is_written("vision_soft_tokens_per_image")
        else None,
    )


def _llama4(whole: Config, vision: Config, text_hidden: int) -> Tower:
    """Returns the encoder of Llama 4. Its attention is within a tile of `image_size`, whose
    patches are merged by a pixel shuffle."""
    hidden = vision.size("hidden_size")
    merged = shuffled_patches(vision, vision.number("pixel_shuffle_ratio", most=1))
    adapted = vision.size("projector_input_dim")
    output = vision.size("projector_output_dim")
    # The MLP behind the shuffle. Merged patches are as wide as the MLPs of the layers.
    adapter = ((vision.size("intermediate_size"), adapted), (output, output))
    positions = (patches_of(vision) + 1) * hidden  # and one for the token of the class
    return Tower(
        hidden_size=hidden,
        layers=equal_layers(vision),
        patches_per_token=merged,
        patch_elements=_patch_elements(vision),
        # The class token, positions, and two norms with biases.
        other_parameters=hidden + positions + 4 * hidden,
        projector=Projector(matrices=(*adapter, (vision.size("vision_output_dim"), text_hidden))),
        tokens_per_image=patches_of(vision) // merged,
    )


def _moonvit(whole: Config, vision: Config, text_hidden: int) -> Tower:
    """Returns the encoder MoonViT. Its keys have two spellings: those of transformers, such as
    hidden_size, and those of the config.json beside Kimi's weights, such as vt_hidden_size."""
    vision = vision.respell(_MOONVIT_KEYS)
    hidden = vision.size("hidden_size")
    height, width = _pair_of_sizes(vision, "merge_kernel_size")
    merged = height * width
    positions = vision.size("pos_emb_height") * vision.size("pos_emb_width") * hidden
    norm_width = whole.size("projection_hidden_size", vision.size("mm_hidden_size", hidden))
    return Tower(
        hidden_size=hidden,
        layers=equal_layers(vision),
        patches_per_token=merged,
        patch_elements=3 * side_of(vision, "patch_size") ** 2,  # of three colours
        # The bias of the patches, positions, and a norm with a bias.
        other_parameters=hidden + positions + 2 * hidden,
        projector=projector_of(merged * hidden, merged * hidden, text_hidden, norm=2 * norm_width),
    )


_MOONVIT_KEYS = {
    "hidden_size": "vt_hidden_size",
    "intermediate_size": "vt_intermediate_size",
    "num_attention_heads": "vt_num_attention_heads",
    "num_hidden_layers": "vt_num_hidden_layers",
    "pos_emb_height": "init_pos_emb_height",
    "pos_emb_width": "init_pos_emb_width",
}


def _pair_of_sizes(cfg: Config, key: str) -> tuple[int, int]:
    """Returns two whole numbers from a list under the key. Raises Invalid for anything else."""
    value = cfg.get(key)
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise cfg.invalid(key, "must be a list of two whole numbers")
    # `size` reads a key, so each number takes the place of the list for a moment.
    first, second = (cfg.with_value(key, number).size(key) for number in value)
    return first, second


def _internvl(whole: Config, vision: Config, text_hidden: int) -> Tower:
    """Returns the encoder of InternVL. `text_hidden` is the hidden size of the language model."""
    whole = whole.assuming(downsample_ratio=0.5)
    hidden = vision.size("hidden_size")
    merged = shuffled_patches(vision, whole.number("downsample_ratio", most=1))
    rms = vision.word("norm_type") == "rms_norm"
    layers = equal_layers(
        vision,
        attention_bias=vision.flag("attention_bias"),
        rms=rms,
        qk_norm=vision.flag("use_qk_norm"),
        qk_norm_all_heads=True,
    )
    # The bias of patches and the class token, and two scales in each layer.
    other = 2 * hidden + 2 * hidden * len(layers)
    if vision.flag("use_absolute_position_embeddings"):
        other += (patches_of(vision) + 1) * hidden
    if vision.flag("use_mask_token"):
        other += hidden
    if not vision.flag("use_mean_pooling"):  # it takes the place of a last norm with a bias
        other += 2 * hidden
    return Tower(
        hidden_size=hidden,
        layers=layers,
        patches_per_token=merged,
        patch_elements=_patch_elements(vision),
        other_parameters=other,
        projector=projector_of(merged * hidden, text_hidden, text_hidden, norm=2 * merged * hidden),
        tokens_per_image=patches_of(vision) // merged,
    )


def _mistral3(whole: Config, vision: Config, text_hidden: int) -> Tower:
    """Returns the Pixtral encoder of Mistral 3, whose projector merges neighbouring patches."""
    hidden = vision.size("hidden_size")
    merged = whole.size("spatial_merge_size", 2) ** 2
    behind_merger = projector_of(
        _num_feature_layers(whole) * hidden,
        text_hidden,
        text_hidden,
        bias=whole.flag("multimodal_projector_bias", default=False),
        norm=hidden,
    )
    merger = ((merged * hidden, hidden),)
    matrices = merger + behind_merger.matrices
    projector = Projector(matrices=matrices, vectors=behind_merger.vectors)
    return _pixtral(vision, merged=merged, projector=projector)


def _pixtral(vision: Config, merged: int, projector: Projector) -> Tower:
    """Returns a Pixtral encoder. `merged` is the number of patches that make a token."""
    hidden = vision.size("hidden_size")
    return Tower(
        hidden_size=hidden,
        layers=equal_layers(vision, bias=False, gated=True, rms=True),
        patches_per_token=merged,
        patch_elements=_patch_elements(vision),
        other_parameters=hidden,  # the norm before the layers
        projector=projector,
    )


def _llava(whole: Config, vision: Config, text_hidden: int) -> Tower:
    """Returns the encoder of a LLaVA model, which is a Pixtral, a SigLIP or a CLIP."""
    hidden = vision.size("hidden_size")
    projector = projector_of(
        _num_feature_layers(whole) * hidden,
        text_hidden,
        text_hidden,
        bias=whole.flag("multimodal_projector_bias", default=True),
    )
    if vision.model_type == "pixtral":
        return _pixtral(vision, merged=1, projector=projector)
    if vision.model_type == "siglip_vision_model":
        return _siglip(vision, merged=1, projector=projector, tokens=patches_of(vision))
    return _clip(vision, projector)


def _clip(vision: Config, projector: Projector) -> Tower:
    """Returns a CLIP encoder, in which every patch is a token."""
    hidden = vision.size("hidden_size")
    positions = (patches_of(vision) + 1) * hidden  # and one for the token of the class
    return Tower(
        hidden_size=hidden,
        layers=equal_layers(vision),
        patches_per_token=1,
        patch_elements=_patch_elements(vision),
        # The class token, positions, and two norms with biases.
        other_parameters=hidden + positions + 4 * hidden,
        projector=projector,
        tokens_per_image=patches_of(vision),
    )


def _num_feature_layers(whole: Config) -> int:
    """Returns the number of encoder layers whose output the projector reads."""
    layers = whole.get("vision_feature_layer")
    return len(layers) if isinstance(layers, (list, tuple)) else 1


_DEFAULT_CLASSES = {
    "gemma3": "siglip_vision_model",
    "llava": "clip_vision_model",
    "mistral3": "pixtral",
}
"""The vision class of families that may have several, where vision_config does not say."""
_READERS: Mapping[str, Read] = {
    "qwen2_vl": _qwen2_vl,
    "qwen2_5_vl": _qwen2_5_vl,
    "qwen3_vl": _qwen3_vl,
    "qwen3_vl_moe": _qwen3_vl,
    "qwen3_5": _qwen3_5,
    "qwen3_5_moe": _qwen3_5,
    "gemma3": _gemma3,
    "gemma4": _gemma4,
    "llama4": _llama4,
    "kimi_k25": _moonvit,
    "internvl": _internvl,
    "mistral3": _mistral3,
    "llava": _llava,
}
