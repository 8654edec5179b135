"""Compute of type `k8s`: deployments of images on a Kubernetes cluster.

`manifests` and what it stands on is pure: from a release to the objects of its cluster. `api` alone speaks to an API
server; `rollout` judges what is seen there; `berth` joins them.
"""
