"""Where deployments run: replica sets on this machine (processes or containers), or a Kubernetes cluster.

A `Compute` gives each deployment a `Target`. On a machine a target switches between `ReplicaSet`s of `Replica`s.
"""
