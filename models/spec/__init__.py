"""The values that a question is made of: model, hardware, software, workload and layout. All of
them are immutable."""
