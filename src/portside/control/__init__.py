"""The control plane: deployments, their revisions and what listeners must bring about.

Owns desired state and what is reported back about it: rows, rules and the revision state machine. It builds nothing,
starts nothing and never calls a listener; listeners ask (`http/dataplane.py`). Contract: control plane, sections 1-8.
"""
