"""What is asked: the model, the hardware, the software, the workload and the layout, as immutable
values."""
