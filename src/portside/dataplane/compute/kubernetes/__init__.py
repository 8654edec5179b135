"""Compute of type `k8s`: deployments of images on a Kubernetes cluster.

`manifests` turns a release into the objects of its deployment, with `objects`, `environment` and `stores`; all of that
is pure. Only `api` talks to the API server. `watching` waits until objects serve, and `target` connects these and
follows the pods of a deployment.
"""
