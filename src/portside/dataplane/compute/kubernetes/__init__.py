"""Compute of type `k8s`: deployments of images on a Kubernetes cluster.

`manifests` turns a release into the objects of its deployment, with `objects`, `environment` and `stores`; all of that
is pure. Only `api` talks to the API server. `watching` waits until objects serve, `following` reads the pods of a
deployment, and `target` connects these.
"""
