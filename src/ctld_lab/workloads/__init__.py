"""Workloads: model, data, loss and metric, one file each. They know nothing of optimizers."""
