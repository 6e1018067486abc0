"""Flags of torchtitan."""
