"""The requests that every server, and the bare graph, is measured with."""

INPUT = {"messages": [{"role": "user", "content": "hi"}]}
RUN = {"assistant_id": "echo", "input": INPUT}
TOKENS = {"assistant_id": "tokens", "input": INPUT, "stream_mode": ["custom"]}
BURST = {"assistant_id": "burst", "input": {"count": 500}, "stream_mode": ["custom"]}
# Runs that wait for tomorrow, sent in batches.
LATER = {**RUN, "after_seconds": 86_400}
BACKLOG = 2000
BATCH = 100
# A thread has few runs, so that the graph's work stays small; each client has this many threads.
RUNS_PER_THREAD = 10
THREADS_PER_CLIENT = 40
STREAMS = (1, 16, 20, 200)
