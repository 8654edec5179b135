"""The table of rate limits and the identification of callers, without any counting."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from click.testing import CliRunner

from portside.cli.hosted import allowlist
from portside.identity.authentication import PresentedCredential
from portside.kernel.errors import Unauthorized, UserMistake
from portside.kernel.http.proxies import get_client_address, read_networks
from portside.limits.callers import Callers
from portside.limits.table import Table, format_table, parse_pattern, read_table
from portside.limits.types import CallerIdentity, Region
from portside.platform.modules import ROUTES, UNLIMITED

KEY = CallerIdentity.API_KEY
USER = CallerIdentity.USER
IP = CallerIdentity.IP
RUN = "/runs/0190a0c0-0000-7000-8000-000000000001"
SHARED = RUN.removeprefix("/runs")
ALL = (KEY, USER, IP)
DEFAULT = Path(__file__).parents[1] / "routes_with_default_limits.txt"

# Requests and the limits that LangSmith's table gives them: method, path, who asks, US, EU, category.
CASES = [
    ("OPTIONS", "/runs/query", ALL, "2000/10", "2000/10", "High throughput"),
    ("GET", "/info", ALL, "2000/10", "2000/10", "High throughput"),
    ("POST", "/some/v1/metadata/submit", (IP,), "2000/10", "2000/10", "High throughput"),
    ("GET", "/auth", (KEY, IP), "2000/10", "2000/10", "High throughput"),
    ("GET", "/auth", (USER, IP), "2000/10", "2000/10", "High throughput"),
    ("GET", "/auth", (IP,), "100/60", "100/60", "Public (catch-all)"),
    ("POST", "/login", ALL, "30/60", "30/60", "Login"),
    ("POST", "/v1/beacon", (IP,), "2000/10", "2000/10", "High throughput"),
    ("GET", "/repos/-/greeting", (KEY, IP), "100/60", "100/60", "Repository"),
    ("POST", "/repos", (USER, IP), "100/60", "100/60", "Repository"),
    ("GET", "/repository", (KEY, IP), "1000/10", "1000/10", "Default (API key)"),
    ("POST", "/runs/batch", (KEY, IP), "2000/10", "2000/10", "High throughput"),
    ("POST", "/otel/v1/traces", (KEY, IP), "2000/10", "2000/10", "Run ingest"),
    ("POST", "/charts/preview", (KEY, IP), "750/600", "750/600", "Charts"),
    ("POST", "/sections/charts", (USER, IP), "750/600", "750/600", "Charts"),
    ("GET", "/charts/x", (KEY, IP), "1000/10", "1000/10", "Default (API key)"),
    ("POST", "/runs/multipart", (KEY, IP), "6000/10", "6000/10", "Multipart ingest"),
    ("POST", "/runs/query", (KEY, IP), "15/10", "15/10", "Run query (API)"),
    ("POST", "/runs/query", (USER, IP), "300/10", "300/10", "Run query (User)"),
    ("POST", "/v2/runs/query", (KEY, IP), "15/10", "15/10", "Run query (API)"),
    ("GET", "/v2/traces/0190a0c0-0000-7000-8000-000000000001/runs", (KEY, IP), "15/10", "15/10", "Run query (API)"),
    ("POST", f"/public{SHARED}/runs/query", (KEY, IP), "15/10", "15/10", "Run query (API)"),
    ("POST", f"/v2/public{SHARED}/runs/query", (USER, IP), "300/10", "300/10", "Run query (User)"),
    ("POST", "/generate", (KEY, IP), "30/3600", "30/3600", "Generation"),
    ("POST", "/generate", (USER, IP), "30/3600", "30/3600", "Generation"),
    ("GET", "/commits/-/greeting/latest", (KEY, IP), "10000/60", "2000/60", "Commits"),
    ("POST", "/commits/-/greeting", (USER, IP), "10000/60", "2000/60", "Commits"),
    ("DELETE", "/sessions", (KEY, IP), "10/60", "10/60", "Deletion"),
    ("DELETE", "/sessions/x", (USER, IP), "30/60", "30/60", "Deletion"),
    ("POST", "/runs/rules/trigger", (KEY, IP), "10/60", "10/60", "Deletion"),
    ("POST", "/runs/rules/x/trigger", (USER, IP), "30/60", "30/60", "Deletion"),
    ("GET", "/sessions", (KEY, IP), "1000/10", "1000/10", "Default (API key)"),
    ("POST", "/runs", (KEY, IP), "2000/10", "2000/10", "Run ingest"),
    ("PATCH", RUN, (KEY, IP), "2000/10", "2000/10", "Run ingest"),
    ("POST", "/feedback", (KEY, IP), "2000/10", "2000/10", "High throughput"),
    ("GET", RUN, (KEY, IP), "30/60", "30/60", "Run lookup"),
    ("GET", RUN.replace("-", ""), (KEY, IP), "30/60", "30/60", "Run lookup"),
    ("GET", f"/v2{RUN}", (KEY, IP), "30/60", "30/60", "Run lookup"),
    ("GET", RUN + "/share", (KEY, IP), "1000/10", "1000/10", "Default (API key)"),
    ("GET", "/datasets/x/examples", (KEY, IP), "5000/60", "5000/60", "Examples"),
    ("GET", "/workspaces", (KEY, IP), "1000/10", "1000/10", "Default (API key)"),
    ("GET", RUN, (USER, IP), "1000/10", "1000/10", "Default (User)"),
    ("GET", "/public/download", (IP,), "5000/60", "5000/60", "Public download"),
    ("POST", "/runs/stats", (KEY, IP), "1/10", "20/10", "Stats"),
    ("POST", "/runs/stats", (IP,), "100/60", "100/60", "Public (catch-all)"),
    ("POST", "/runs", (IP,), "100/60", "100/60", "Public (catch-all)"),
]


@pytest.mark.parametrize(("method", "path", "who", "us", "eu", "category"), CASES)
def test_limit_and_category_of_a_request(method, path, who, us, eu, category) -> None:
    rows = read_table()
    for region, limit in ((Region.US, us), (Region.EU, eu)):
        row = Table(rows, region).find_row(method, {path}, who)
        assert row is not None
        assert (str(row.limits[region]), row.category) == (limit, category)


def test_every_route_has_a_row_or_a_reason_for_the_default() -> None:
    """A new route that reads what an older one reads could sidestep its row."""
    table = Table(read_table(), Region.US)
    by_default = set()
    for route in ROUTES:
        path = re.sub(r"\{[^}]*\}", SHARED.removeprefix("/"), route.path)
        row = table.find_row(route.method, {path}, ALL)
        assert row is not None

        if row.match == "any" and route.path not in UNLIMITED:
            by_default.add(f"{route.method} {route.path}")

    agreed = [line for line in DEFAULT.read_text().splitlines() if line and not line.startswith("#")]
    assert sorted(agreed) == sorted(by_default)


def test_both_forms_of_a_query_spend_one_budget() -> None:
    table = Table(read_table(), Region.US)
    assert table.find_row("POST", {"/runs/query"}, (KEY, IP)) == table.find_row("POST", {"/v2/runs/query"}, (KEY, IP))


def test_a_row_is_found_with_and_without_a_prefix() -> None:
    table = Table(read_table(), Region.US)
    row = table.find_row("POST", {"/beacon", "/api/v1/beacon"}, (IP,))
    assert row is not None
    assert row.category == "Public (catch-all)"
    row = table.find_row("POST", {"/metadata/submit", "/api/v1/metadata/submit"}, (IP,))
    assert row is not None
    assert row.category == "High throughput"


def test_a_table_survives_formatting_and_parsing(tmp_path) -> None:
    rows = read_table()
    file = tmp_path / "limits.txt"
    file.write_text(format_table(rows))
    assert len(rows) == 30
    assert format_table(read_table(file)) == format_table(rows)


def test_a_row_can_be_switched_off(tmp_path) -> None:
    file = tmp_path / "limits.txt"
    file.write_text("/slow | x-api-key | 1/10 | off | Slow\nany | IP | off | 5/1 | Rest\n")
    slow, rest = read_table(file)
    assert (str(slow.limits[Region.US]), slow.limits[Region.EU]) == ("1/10", None)
    assert (rest.limits[Region.US], str(rest.limits[Region.EU])) == (None, "5/1")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("/a | IP | 1/1 | 1/1", "five columns"),
        ("/a | nobody | 1/1 | 1/1 | A", "Invalid identity 'nobody'"),
        ("/a | IP | 0/1 | 1/1 | A", "must be from 1 to"),
        ("/a | IP | 1/1 | many | A", "Invalid limit 'many': use COUNT/SECONDS or off"),
        ("FETCH /a | IP | 1/1 | 1/1 | A", "Invalid pattern"),
        ("a | IP | 1/1 | 1/1 | A", "Invalid pattern"),
        ("containing | IP | 1/1 | 1/1 | A", "Invalid pattern"),
    ],
)
def test_a_table_that_cannot_be_read_names_its_line(tmp_path, line, says) -> None:
    file = tmp_path / "limits.txt"
    file.write_text(f"# mine\n\n{line}\n")
    with pytest.raises(UserMistake, match="line 3") as caught:
        read_table(file)

    assert says in str(caught.value)


def test_a_missing_table_file_is_refused(tmp_path) -> None:
    with pytest.raises(UserMistake, match="cannot read the rate limits"):
        read_table(tmp_path / "none.txt")


def test_paths_are_matched_by_whole_segments() -> None:
    pattern = parse_pattern("/auth")
    assert pattern.matches("GET", "/auth")
    assert pattern.matches("POST", "/auth/public")
    assert not pattern.matches("GET", "/authority")
    assert not pattern.matches("GET", "/x/auth")


class Known:
    """Knows one user, by a key and by the token of a session."""

    key = "lsv2_pt_0123456789abcdef_0123456789"
    token = "session"
    actor = SimpleNamespace(user_id=UUID(int=1), key_id=UUID(int=2))

    async def authenticate(self, key: str) -> Any:
        if key != self.key:
            raise Unauthorized
        return self.actor

    async def authenticate_request(self, credential: PresentedCredential) -> Any:
        if credential.token not in {self.key, self.token}:
            raise Unauthorized
        return self.actor


async def name_caller(address: str, **headers: str) -> dict[CallerIdentity, str]:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "scheme": "http", "headers": raw, "client": (address, 1)}
    return await Callers(cast("Any", Known())).names(scope)


@pytest.mark.parametrize("address", ["192.0.2.1", "192.0.2.2"])
async def test_a_caller_is_named_by_its_key_or_by_its_session_and_address(address: str) -> None:
    session = {"authorization": f"Bearer {Known.token}"}
    by_session = f"{Known.actor.user_id} {address}"
    assert await name_caller(address, x_api_key=Known.key) == {IP: address, KEY: str(Known.actor.key_id)}
    assert await name_caller(address, **session) == {IP: address, USER: by_session}
    assert await name_caller(address, **session, x_user_id="somebody else") == {IP: address, USER: by_session}

    names = await name_caller(address, **session, x_api_key="invented")
    assert names[USER] == by_session
    assert names[KEY] not in {"invented", str(Known.actor.key_id)}


@pytest.mark.parametrize(
    ("peer", "forwarded", "trusted", "address"),
    [
        ("10.0.0.1", None, "", "10.0.0.1"),
        ("10.0.0.1", "1.2.3.4", "", "10.0.0.1"),
        ("10.0.0.1", "1.2.3.4", "10.0.0.0/8", "1.2.3.4"),
        ("10.0.0.1", "9.9.9.9, 1.2.3.4, 10.0.0.7", "10.0.0.0/8", "1.2.3.4"),
        ("10.0.0.1", "10.0.0.8, 10.0.0.7", "10.0.0.0/8", "10.0.0.8"),
        ("10.0.0.1", "nonsense", "10.0.0.0/8", "unknown"),
        ("2001:db8:1:2:3:4:5:6", None, "", "2001:db8:1:2::/64"),
        ("::ffff:1.2.3.4", None, "", "1.2.3.4"),
        ("::ffff:10.0.0.1", "1.2.3.4", "10.0.0.0/8", "1.2.3.4"),
    ],
)
def test_client_address(peer, forwarded, trusted, address) -> None:
    headers = [(b"x-forwarded-for", forwarded.encode())] if forwarded else []
    scope = {"type": "http", "client": (peer, 1), "headers": headers}
    assert get_client_address(scope, read_networks(trusted)) == address


def test_invalid_trusted_proxies_are_refused() -> None:
    with pytest.raises(UserMistake, match="TRUSTED_PROXIES"):
        read_networks("10.0.0.0/8, nowhere")


def test_the_addresses_of_the_hosted_service() -> None:
    """The documented lists, for one region and for both."""
    shown = json.loads(CliRunner().invoke(allowlist, ["--json"]).output)
    assert {region: {way: len(found) for way, found in of.items()} for region, of in shown.items()} == {
        "us": {"egress": 8, "ingress": 2},
        "eu": {"egress": 8, "ingress": 2},
    }

    assert shown["us"]["egress"][0] == "34.59.65.97"
    lines = CliRunner().invoke(allowlist, ["--region", "eu"]).output.splitlines()
    assert (len(lines), lines[-1].split()) == (11, ["eu", "ingress", "34.13.73.122"])
