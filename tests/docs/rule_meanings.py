"""What each rule of `models.layouts.rules` asks, in a sentence, for the table of the reference."""

RULE_MEANINGS: dict[str, str] = {
    "mesh_fills_cluster": "The degrees of the mesh multiply to the number of devices.",
    "tensor_divides_heads": (
        "`tp` divides the attention heads, and the key-value heads, unless the stack repeats these."
    ),
    "tensor_divides_widths": (
        "`tp` divides the hidden size and the width of dense layers, `etp` the width of experts."
    ),
    "whole_blocks": (
        "The sides of a device's weight matrices are multiples of the block of the number format,"
        " where the kernels of the stack need it."
    ),
    "experts_divide": "`ep` divides the number of experts; in a dense model `ep` and `etp` are 1.",
    "experts_fold_over_dense_axes": (
        "`ep` times `etp` divides the product of the axes that the stack folds experts over."
    ),
    "sequence_divides": (
        "`seq_len` divides into two chunks for each rank of `cp`, one from the front and one from"
        " the back, so that causal attention is balanced."
    ),
    "sequence_divides_over_tensor": (
        "With sequence parallelism the tokens of such a chunk divide over `tp` as well."
    ),
    "context_divides_heads": (
        "Where context parallelism exchanges heads for tokens (Ulysses), `cp` times `tp` divides"
        " the attention heads."
    ),
    "batch_divides": (
        "`global_batch` is a multiple of the data-parallel ranks times `micro_batch`."
    ),
    "schedule_offered": "The stack runs the schedule.",
    "schedule_shape": (
        "The schedule has as many stages, virtual stages and micro-batches as it is made for."
    ),
    "stated_layers_add_up": (
        "`layers_per_chunk` adds up to the layers of the model, gives each chunk at least one,"
        " except the first and the last of `interleaved`, and goes with a stack that can split so."
    ),
    "layers_divide": (
        "There are enough layers for all chunks of the pipeline, and the same number for each"
        " unless the layout is `balanced`."
    ),
    "tied_embedding_in_pipeline": (
        "A model that ties its embedding to its head has no pipeline, unless the stack can share"
        " them between stages."
    ),
    "mtp_offered": (
        "A model with multi-token prediction has neither a pipeline nor context parallelism, unless"
        " the stack has it together with these."
    ),
    "accumulation_offered": (
        "Where the stack accumulates no gradients in fp8 on these chips, there is one micro-batch"
        " only, or a pipeline."
    ),
    "partition_offered": "The stack splits layers over stages evenly, or unevenly, as asked.",
    "balancing_needs_all_forwards_first": (
        "With `global_batch_loss` there is one micro-batch, or the schedule runs all forward passes"
        " before the first backward pass."
    ),
    "sharding_shape": (
        "ZeRO stage 0 goes with `dp_shard` 1, and stages 1 to 3 with more, or with no data"
        " parallelism at all."
    ),
    "sharding_offered": "The stack has the ZeRO stage, also beside replicas where there are some.",
    "muon_offered": "The stack has the optimizer Muon with this ZeRO stage.",
    "sharding_in_pipeline": "The stack has this ZeRO stage beside a pipeline.",
    "sharding_beside_experts": (
        "ZeRO stage 3 with expert parallelism has no context parallelism, unless the stack has all"
        " three together."
    ),
    "reshard_offered": "With ZeRO stage 3 the stack can drop gathered parameters, or keep them.",
    "degrees_offered": "No degree is above the limit of the stack.",
    "sequence_parallel_offered": (
        "`sequence_parallel` goes with `tp` above 1, and is on or off as the stack has it."
    ),
    "moe_needs_sequence_parallel": "Experts with `tp` above 1 have `sequence_parallel`.",
    "recompute_offered": "The stack has this kind of recompute.",
    "modules_offered": "The stack can recompute these modules.",
    "modules_exist": "Some layer of the model has these modules.",
    "recompute_layers_offered": (
        "A number of layers to recompute is less than the layers of a chunk, with an even split and"
        " activations on the device, and the stack takes such a number."
    ),
    "offload_offered": (
        "The stack offloads this to the host, beside this kind of recompute and with this"
        " optimizer."
    ),
    "offload_needs_sharding": "Optimizer states are offloaded as the shards of ZeRO 1 to 3 only.",
    "offload_in_pipeline": (
        "Activations are not offloaded in a pipeline, unless the stack can do both together."
    ),
    "placement_offered": "The stack orders the axes over the devices in this way.",
    "equal_data_parallel": (
        "A pipeline that is not the outermost axis has as many data-parallel ranks for experts as"
        " for the rest, where the stack asks for it."
    ),
    "torus_axes_exist": "`torus_axes` are given for a torus only.",
    "block_divides_torus": (
        "`torus_block` divides every longer dim of the torus, and is 1 where there is none."
    ),
    "placement_fits_torus": (
        "On a torus every axis divides a dim or covers whole dims, so that its rings close."
    ),
}
"""By the name of the rule."""
