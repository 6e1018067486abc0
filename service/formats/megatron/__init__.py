"""Megatron's arguments, as its runs dump them and as they are typed: the models, workloads and
layouts that they say. Logs and launches are both read by them."""
