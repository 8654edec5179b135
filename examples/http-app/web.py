"""Routes of our own beside those of the agent server, in the same process and at the same address.

A shop's program knows tickets, not threads and runs. It sends a ticket and gets an id at once; the agent works in the
background; whoever asks later gets the result.
"""

from uuid import UUID

from fastapi import FastAPI, HTTPException
from langgraph_sdk import get_client
from langgraph_sdk.errors import NotFoundError
from pydantic import BaseModel

app = FastAPI()
# Without an address it is a client of the server that runs this code: no network, and no key.
client = get_client()


class Ticket(BaseModel):
    """What the shop sends."""

    text: str


class SortedTicket(BaseModel):
    """What the shop gets back. The topic is null until the agent is done."""

    id: str
    status: str
    topic: str | None


@app.post("/tickets", status_code=202)
async def create_ticket(ticket: Ticket) -> SortedTicket:
    """Take a ticket, and start the agent in the background."""
    thread = await client.threads.create(metadata={"kind": "ticket"})
    message = {"role": "user", "content": ticket.text}
    await client.runs.create(thread["thread_id"], "agent", input={"messages": [message]})

    return SortedTicket(id=thread["thread_id"], status="busy", topic=None)


@app.get("/tickets/{ticket_id}")
async def get_ticket(ticket_id: UUID) -> SortedTicket:
    """Say what the agent made of a ticket."""
    try:
        thread = await client.threads.get(str(ticket_id))
    except NotFoundError:
        raise HTTPException(404, "There is no such ticket.") from None

    topic = thread["values"]["messages"][-1]["content"] if thread["status"] == "idle" and thread["values"] else None
    return SortedTicket(id=str(ticket_id), status=thread["status"], topic=topic)
