"""The best layout: exact branch and bound over the space of layouts, and the reason why none fits
where none does."""
