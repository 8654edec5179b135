"""Where deployments run, behind one interface (`interface.py`); `kinds.py` knows the kinds by name.

On this machine (`machine.py`): `process.py` is one replica, `running.py` keeps one alive, `serving.py` is what a
deployment's address leads to.
"""
