"""The encoder of images, which runs with the embedding: kernel times, sizes and activations.

The encoder has the tensor parallelism of the language model where that divides its heads; otherwise
every tensor-parallel rank has all of it. Every context-parallel rank encodes all images of its
micro-batch (Megatron-LM megatron/core/models/multimodal/llava_model.py, where context parallelism
divides what the language model reads). The encoder has no sequence parallelism, since the patches
of images need not divide. *Tower* stands for the encoder without its projector.
"""

from __future__ import annotations

from models.columns import Array
from models.compilation.compiled import compiled
from models.cost.compute import LayerTime, layer_time, overhead, plain_time
from models.cost.facts import ALL_PIECES, CoefficientRecord, Images
from models.cost.kernels import Passes, add, linear
from models.cost.memory import PartSize, activations, layer_size
from models.cost.recomputation import kept_bytes, recompute_seconds
from models.cost.rows import Row
from models.cost.shard import Shard

EVERY_PIECE = (1 << len(ALL_PIECES)) - 1
"""A bit for every piece of a layer, a share of it that recompute may repeat by itself. The times of
the encoder's pieces are all worked out."""


@compiled
def encoder_shard(images: Images, row: Row) -> Shard:
    """Return the share of one device in the encoder: the patches of a micro-batch as tokens, and
    the degree of tp, which is 1 where it does not divide the encoder's heads."""
    encoder = images.encoder[0]
    patches = row.micro_batch * encoder.patches
    tp = float(row.tp) if encoder.num_attention_heads % row.tp == 0 else 1.0
    # Without sequence parallelism local tokens are all tokens; without experts ep and etp are 1.
    return Shard(patches, patches, tp, 1.0, 1.0)


@compiled
def image_tokens(images: Images, shard: Shard) -> float:
    """Return the number of tokens that the projector makes of the patches of a micro-batch."""
    encoder = images.encoder[0]
    return shard.tokens * encoder.tokens / encoder.patches


@compiled
def encoder_time(
    images: Images, shard: Shard, coefficients: CoefficientRecord, recompute: Array, pieces: Array
) -> LayerTime:
    """Return the time of the whole encoder with its projector. A frozen encoder has no backward.
    Add to `recompute` (policies,) the seconds that each recompute policy adds to backward.
    `pieces` is scratch for the forward seconds of a layer's pieces."""
    facts = images.facts[0]
    encoder = images.encoder[0]
    ends = end_products(images, shard, coefficients)  # patch embedding and projector
    factor = overhead(facts, coefficients)
    forward = ends.forward * factor
    backward = (ends.input + ends.weight) * factor
    weight = ends.weight * factor
    for kind in range(len(images.layers)):
        layer = images.layers[kind]
        # EVERY_PIECE: the seconds of all pieces are worked out, whichever the policies repeat.
        seconds = layer_time(facts, layer, shard, coefficients, EVERY_PIECE, pieces)
        forward += layer.num_layers * seconds.forward
        if not encoder.trained:
            continue
        backward += layer.num_layers * seconds.backward
        weight += layer.num_layers * seconds.weight
        for policy in range(len(recompute)):
            repeated = recompute_seconds(images.policies[policy, kind], seconds.forward, pieces)
            recompute[policy] += layer.num_layers * repeated
    return plain_time(forward, backward, weight, 1.0)  # Overhead is in these seconds already.


@compiled
def end_products(images: Images, shard: Shard, coefficients: CoefficientRecord) -> Passes:
    """Return the time of the patch embedding and of the projector. The embedding's input, the
    images, has no gradient. The projector is cut over tp like the encoder."""
    facts = images.facts[0]
    encoder = images.encoder[0]
    patch = linear(facts, coefficients, shard.tokens, encoder.patch_elements, facts.hidden_size)
    total = Passes(patch.forward, 0.0, patch.weight if encoder.trained else 0.0)
    tokens = image_tokens(images, shard)
    for matrix in range(len(images.projector)):
        n_in, n_out = images.projector[matrix]
        product = linear(facts, coefficients, tokens, n_in, n_out / shard.tp)
        if not encoder.projector_trained:
            product = Passes(product.forward, 0.0, 0.0)
        total = add(total, product)
    return total


@compiled
def encoder_size(images: Images, shard: Shard) -> PartSize:
    """Return the parameters of the encoder and its projector on one device. Tensor parallelism cuts
    its layers and the projector's matrices; everything else is whole on every device."""
    facts = images.facts[0]
    encoder = images.encoder[0]
    tower, unit = encoder.whole_parameters, 0.0
    for kind in range(len(images.layers)):
        size = layer_size(facts, images.layers[kind], shard)
        tower += images.layers[kind].num_layers * size.dense
        unit = max(unit, size.unit)
    projector = encoder.projector_vectors
    for matrix in range(len(images.projector)):
        projector += images.projector[matrix, 0] * images.projector[matrix, 1] / shard.tp
    trained = tower if encoder.trained else 0.0
    trained += projector if encoder.projector_trained else 0.0
    return PartSize(tower + projector, 0.0, unit, trained, 0.0)  # 0.0: it has no experts


@compiled
def add_encoder_kept(images: Images, shard: Shard, kept: Array, pieces: Array) -> None:
    """Add to `kept` (policies,) the bytes of a micro-batch that the encoder and its projector keep
    until backward, under each recompute policy. A frozen module keeps nothing. `pieces` is scratch
    for the bytes of a layer's pieces."""
    facts = images.facts[0]
    encoder = images.encoder[0]
    inputs = 0.0  # of products with trained matrices, whose gradients need them
    if encoder.trained:
        inputs += shard.tokens * encoder.patch_elements
    if encoder.projector_trained:
        for matrix in range(len(images.projector)):
            # Column 0 has the elements of a token that the matrix reads.
            inputs += image_tokens(images, shard) * images.projector[matrix, 0]
    for policy in range(len(kept)):
        kept[policy] += inputs * facts.activation_bytes
    if not encoder.trained:
        return
    for kind in range(len(images.layers)):
        stored = activations(facts, images.layers[kind], shard, pieces)
        for policy in range(len(kept)):
            of_layer = kept_bytes(images.policies[policy, kind], stored, pieces)
            kept[policy] += images.layers[kind].num_layers * of_layer
