"""Overrides of Megatron-Bridge, and of NeMo."""
