"""Each example is deployed by the command of its README, and then answers as the README says."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.test_examples import IN_PYTHON, SECRET
from tests.browser import NEEDS_CHROMIUM, open_chromium, open_page
from tests.node_packages import javascript_runtime
from tests.preloaded import run_command
from tests.readmes import AGENT, EXAMPLES, PLATFORM, Reader, find_command
from tests.servers import KEY, ServerProcess, platform_server
from tests.traced import forget_variables

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with platform_server(tmp_path_factory.mktemp("examples") / "home", DEPLOYMENT_START_TIMEOUT_S="600") as server:
        yield server


@pytest.fixture(autouse=True)
def _set_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANGSMITH_API_KEY", KEY)
    monkeypatch.setenv("LG_WEBHOOK_SECRET", SECRET)


async def deploy(platform: ServerProcess, name: str, home: Path) -> str:
    """Deploy an example by the command of its README, in its folder; return the address that the command prints."""
    program, *arguments = find_command(EXAMPLES / name, "portside deploy")
    assert program == "portside"

    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "PORTSIDE_URL": platform.url,
        "PORTSIDE_API_KEY": KEY,
    }
    values = [argument.replace("$LG_WEBHOOK_SECRET", SECRET) for argument in arguments]
    deployed = await asyncio.to_thread(run_command, *values, environment=environment, folder=EXAMPLES / name)
    assert deployed.returncode == 0, deployed.stderr
    return deployed.stdout.strip()


@pytest.mark.parametrize("name", IN_PYTHON)
async def test_deployed_example_answers_as_its_readme_says(
    name: str, platform: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    url = await deploy(platform, name, tmp_path)
    await Reader(EXAMPLES / name, monkeypatch, {AGENT: url}).follow("Ask it")


async def test_deployed_example_in_typescript_answers_as_its_readme_says(
    platform: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # Without Node or its packages the test skips.
    javascript_runtime()
    url = await deploy(platform, "hello-agent-js", tmp_path)
    await Reader(EXAMPLES / "hello-agent-js", monkeypatch, {AGENT: url}).follow("Ask it")


async def test_traces_of_a_program_elsewhere_arrive_at_a_platform(
    platform: ServerProcess, monkeypatch: pytest.MonkeyPatch
):
    # Otherwise the exporter drops spans that a busy machine has not taken after 10 s.
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "100")
    forget_variables()
    try:
        reader = Reader(EXAMPLES / "tracing-from-outside", monkeypatch, {PLATFORM: platform.url}, KEY=KEY)
        await reader.follow("Run it")
        await reader.follow("See it")
    finally:
        forget_variables()


@NEEDS_CHROMIUM
async def test_deployed_chat_page_asks_for_the_key_and_keeps_the_conversation(platform: ServerProcess, tmp_path: Path):
    url = await deploy(platform, "chat-page", tmp_path)
    async with open_chromium() as browser, open_page(browser) as page:
        await page.goto(f"{url}/chat/")
        message = page.get_by_label("Message")
        send = page.get_by_role("button", name="Send")

        async def give_key() -> None:
            await page.get_by_label("Key").fill(KEY)
            await page.get_by_role("button", name="Use it").click()

        # A stranger is asked for a key.
        await message.fill("hello")
        await send.click()
        await give_key()

        for text in ("hello", "and goodbye"):
            await message.fill(text)
            await send.click()
            await page.get_by_text(f'You said "{text}"').wait_for()
            await send.wait_for()

        # Below /agents/ a page has no storage: the thread is in its address, and the key is gone.
        await page.reload()
        await give_key()
        await page.get_by_text('and before that "hello"').wait_for()
        assert await page.locator("li").count() == 4
