from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from shop import OPEN


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    OPEN.append("the shop is open")
    yield
    OPEN.clear()


app = FastAPI(lifespan=lifespan)


@app.get("/hours")
def hours() -> dict:
    return {"hours": OPEN}
