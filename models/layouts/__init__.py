"""What is legal: the rules of layouts, the space of layouts that they leave, and where the axes of
a mesh lie on the fabric."""
