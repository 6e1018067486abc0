"""Tables of measurements that benchmarks print."""
