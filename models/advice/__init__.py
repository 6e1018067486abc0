"""Advice for people: recommendations, comparisons, frontiers, and where to run on how many
chips."""
