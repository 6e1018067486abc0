"""DeepSpeed's document."""
