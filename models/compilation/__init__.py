"""The compilation of the cost model to machine code, and where that is kept."""
