"""All processes of a replica take over the deployment's address with one message, and none without it."""

import os

import httpx2

from portside.agent.http.services import Traffic
from portside.agent.server import _await_handover
from portside.kernel.http.routes import Context, Routes
from portside.kernel.http.server import listen
from portside.kernel.tasks import TaskSet
from tests.conftest import eventually
from tests.unit.kernel_server import Served, serve

routes = Routes("t")


@routes.get("/name", public=True)
async def show_name(_ctx: Context) -> str:
    return "served"


class Replica:
    """Processes of one replica, each a server here, which wait for one pipe to take over one public socket."""

    def __init__(self) -> None:
        self.public = listen("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.public.getsockname()[1]}/name"
        self.waiting, self.asking = os.pipe()
        self.pipes: list[int] = []
        self.takeovers = TaskSet()

    def start(self, served: Served) -> Traffic:
        """Let a process wait for the message, with descriptors of its own."""
        traffic = Traffic(is_served=False)
        self.pipes.append(os.dup(self.waiting))
        _await_handover(
            served.server, traffic, self.takeovers, public_fd=os.dup(self.public.fileno()), pipe=self.pipes[-1]
        )

        return traffic

    def close(self) -> None:
        self.public.close()
        os.close(self.waiting)


async def test_every_process_takes_over_also_one_that_starts_later():
    replica = Replica()
    async with serve(routes) as first, serve(routes) as second, serve(routes) as late:
        processes = [replica.start(first), replica.start(second)]
        os.write(replica.asking, b"1")
        os.close(replica.asking)

        async def have_taken_over() -> bool:
            return all(traffic.is_served for traffic in processes)

        await eventually(have_taken_over)
        processes.append(replica.start(late))
        await eventually(have_taken_over)

        # One alone is left for the public address, so each of them really listens there.
        for served in (first, second):
            await served.stop()

        async with httpx2.AsyncClient() as client:
            assert (await client.get(replica.url)).json() == "served"

        replica.close()


async def test_no_process_takes_over_when_nobody_asked():
    """The data plane ended, or gave the revision up, and its end of the pipe closed without a message."""
    replica = Replica()
    async with serve(routes) as served:
        traffic = replica.start(served)
        pipe = os.fstat(replica.waiting).st_ino
        os.close(replica.asking)

        async def has_looked() -> bool:
            return not is_open(replica.pipes[0], pipe)

        await eventually(has_looked)
        assert not len(replica.takeovers)
        assert traffic.is_served is False
        replica.close()


def is_open(descriptor: int, pipe: int) -> bool:
    """Return whether a descriptor belongs to a pipe. After its end another thread may get the same number."""
    try:
        return os.fstat(descriptor).st_ino == pipe
    except OSError:
        return False
