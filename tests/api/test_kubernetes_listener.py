"""The listener of a cluster as a program, and its health check; needs no cluster."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from portside.dataplane.compute.kubernetes.watching import PollTiming, WorkloadWatch
from portside.dataplane.failures import DeployFailed
from tests.kubernetes import objects


def run(home: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    known = {"PATH": os.environ["PATH"], "HOME": str(home), "PORTSIDE_HOME": str(home)}
    known |= {"CONTROL_PLANE_URL": "http://127.0.0.1:9", "CONTROL_PLANE_API_KEY": "key"}
    command = [sys.executable, "-m", "portside", "listener", "--compute", "kubernetes"]
    return subprocess.run(
        command, env={**known, **environment}, capture_output=True, text=True, timeout=200, check=False
    )


def test_listener_reports_missing_settings(tmp_path: Path) -> None:
    without = run(tmp_path)
    assert without.returncode == 1
    assert "KUBERNETES_NAMESPACES: not set" in without.stderr
    nowhere = run(tmp_path, KUBERNETES_NAMESPACES="agents", KUBECONFIG=str(tmp_path / "missing"))
    assert nowhere.returncode == 1
    assert "there is no cluster to deploy to" in nowhere.stderr


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    request = await reader.readuntil(b"\r\n\r\n")
    status = b"200 OK" if request.startswith(b"GET /agents/one/ok ") else b"503 Not now"
    writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    await writer.drain()
    writer.close()


async def test_until_healthy_waits_for_ok_or_says_why() -> None:
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    api: Any = None
    watch = WorkloadWatch(api, objects().scope, lambda _: None, PollTiming(poll_s=0.01))
    await watch.until_healthy(f"http://127.0.0.1:{port}/agents/one", 120)
    with pytest.raises(DeployFailed, match="it answers 503"):
        await watch.until_healthy(f"http://127.0.0.1:{port}/agents/two", 0.05)
    server.close()
    await server.wait_closed()
    with pytest.raises(DeployFailed, match="ConnectError"):
        await watch.until_healthy(f"http://127.0.0.1:{port}/agents/one", 0.05)
