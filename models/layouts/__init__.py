"""Legality: the rules of layouts, the space of layouts that they leave, and the place of the axes
of a mesh on the fabric."""
