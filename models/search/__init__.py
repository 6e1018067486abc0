"""Which layout is best: exact branch and bound over the space of layouts, and why nothing fits
where nothing does."""
