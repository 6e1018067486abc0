"""The tools around the Trainer of transformers: accelerate launch, TRL, axolotl, LLaMA-Factory and
ms-swift, each with FSDP or DeepSpeed.

The *Trainer* is that class of transformers. A *dialect* is the names that one tool has for its
settings, and each tool has a table of them (fields/*.json). `launched` finds the tool and its
settings in a text, a module per tool translates them into those of accelerate and transformers, and
`reader` makes of these a layout of FSDP or of DeepSpeed.
"""
