"""Graphs in processes of their own: the executor processes of this server, and the graphs behind them."""
