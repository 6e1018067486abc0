"""Models *of* transformers, hardware and time: pure numpy and standard library, no HTTP, no SQL, no
clock."""
