"""Models *of* transformers, hardware and time: pure computation on numpy, numba and the standard
library, without HTTP, SQL or a clock."""
