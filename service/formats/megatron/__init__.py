"""Megatron's arguments, as its runs dump them and as they are typed: the models, workloads and
layouts that they say. Logs and launches are both read by them.

A *dump* is the list of all arguments that a run of Megatron prints at its start. A *flag* is how an
argument is typed: --disable-bias-linear sets the argument add_bias_linear.
"""
