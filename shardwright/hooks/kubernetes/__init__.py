"""The admission webhook of Kubernetes, for Job, JobSet, PyTorchJob and TrainJob."""
