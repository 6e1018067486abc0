"""Formats of other tools, one a module: readers of Hugging Face configs, training logs, benchmark
outputs and tables of published runs."""
