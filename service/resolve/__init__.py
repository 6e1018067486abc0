"""Resolution: the names of a request become values that the models compute with.

A *question* is the part of a request that says what is trained, on what and how: model, cluster,
workload and stack. Resolved, it is a *problem* (models.layouts).
"""
