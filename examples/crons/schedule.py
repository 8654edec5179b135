"""Makes the cron that runs the agent.

Usage: python schedule.py "30 7 * * MON-FRI" [URL]

Run it again with another schedule, and the cron has that one. There is never a second one.
"""

import sys

from langgraph_sdk import get_sync_client

JOB = {"job": "digest"}

schedule = sys.argv[1]
url = sys.argv[2] if len(sys.argv) > 2 else "http://127.0.0.1:2024"
client = get_sync_client(url=url)

crons = client.crons.search(metadata=JOB)
if crons:
    cron = client.crons.update(crons[0]["cron_id"], schedule=schedule)
else:
    # The threads of its runs are kept, so that you can look at them; by default they are deleted.
    cron = client.crons.create(
        "agent", schedule=schedule, input={"messages": []}, metadata=JOB, on_run_completed="keep"
    )

print(f"runs at {cron['schedule']}")
