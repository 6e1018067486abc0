"""Models *of* transformers, hardware and time: numpy and the standard library only, with no HTTP,
SQL or clock."""
