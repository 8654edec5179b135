"""The values of the control plane's APIs: what is sent, what is answered, and the names of states."""
