"""The support bundle holds what helps, and none of the secrets that the test plants in every place it can think of."""

import base64
import json
import os
import sys
import tarfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from urllib.parse import quote
from uuid import UUID

import httpx2
import pytest

from portside.kernel.crypto import SecretBox
from portside.operate.bundle import Bundle, Masks, list_secret_values, write_bundle
from portside.operate.findings import ExaminedInstallation
from tests.api.control_server import create_body
from tests.preloaded import run_command
from tests.servers import KEY, ServerProcess, platform_server

SECRET = "hunter2-of-a-deployment/with+signs="
DATABASE_PASSWORD = "pass word&of@the-database"
TOKEN_OF_ENVIRONMENT = "value-of-the-environment-4711"
PASSWORD_IN_URL = "password-in-an-address"
AGENT_PASSWORD = "password-of-an-agents-database"
UNKNOWN = {
    "lsv2_pt_99999999999999999999999999999999_9999999999": "lsv2_pt_99999999999999999999999999999999_9999999999 made",
    "sk-proj-abcdefghijklmnopqrstuvwx": "OpenAI said: incorrect key sk-proj-abcdefghijklmnopqrstuvwx",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl": "token eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
    "bearer-of-somebody": "Authorization: Bearer bearer-of-somebody",
    "typed-by-hand": 'config {"db_password": "typed-by-hand"}',
    "in-a-query": "GET /hook?api_key=in-a-query&x=1",
    "user-of:pass-of": "fetch https://user-of:pass-of@git.example.com/a.git",
    "MIIEvQIBADANBg": "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBg\n-----END PRIVATE KEY-----",
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundled") / "home"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[ServerProcess]:
    with platform_server(home, PORTSIDE_OWN_LISTENER="false") as running:
        yield running


@pytest.fixture(scope="module")
def planted_secrets(server: ServerProcess, home: Path) -> list[str]:
    """Plant secrets in the database and in logs; return all that the bundle must not hold."""
    body = create_body("secretive", secrets=[]) | {"secrets": [{"name": "MODEL_KEY", "value": SECRET}]}
    response = httpx2.post(f"{server.url}/v2/deployments", json=body, headers={"X-Api-Key": KEY}, timeout=300)
    deployment = UUID(response.raise_for_status().json()["id"])
    folder = home / "dataplane" / "deployments" / str(deployment)

    (folder / "logs").mkdir(parents=True)
    (folder / "database-password").write_text(AGENT_PASSWORD + "\n")
    known = [SECRET, DATABASE_PASSWORD, TOKEN_OF_ENVIRONMENT, PASSWORD_IN_URL, AGENT_PASSWORD, KEY]
    known += [(home / name).read_text().strip() for name in ("master-key", "listener-key", "postgres/password")]
    lines = [f"the agent printed {value}" for value in known]
    lines += [
        f"in an address {quote(value, safe='')} and {base64.b64encode(value.encode()).decode()}" for value in known
    ]
    lines += [json.dumps({"event": f"value {value}"}) for value in known]

    lines += [*UNKNOWN.values(), "a line that helps"]
    for log in (folder / "logs" / "server.log", home / "logs" / "listener.log", home / "logs" / "ingress.log"):
        log.parent.mkdir(exist_ok=True)
        log.write_text("\n".join(lines) + "\n")

    return [*known, *UNKNOWN]


def make_bundle(server: ServerProcess, home: Path, file: Path) -> tuple[str, dict[str, str]]:
    """Run the command as an operator does, and return its output and the files of the bundle."""
    environment = {
        **os.environ,
        "OPENAI_API_KEY": TOKEN_OF_ENVIRONMENT,
        "OIDC_CLIENT_SECRET": TOKEN_OF_ENVIRONMENT,
        "HTTPS_PROXY": f"http://proxy:{PASSWORD_IN_URL}@127.0.0.1:9",
        "PORTSIDE_API_KEY": KEY,
        "DATABASE_URL": "",
        "SOME_DSN": f"postgresql://me:{quote(DATABASE_PASSWORD, safe='')}@db.example.com/x",
        "NO_PROXY": "127.0.0.1",
    }

    port = server.url.rpartition(":")[2]
    done = run_command(
        "support-bundle", "--home", str(home), "--to", str(file), "--port", port, environment=environment
    )
    assert done.returncode == 0, done.stderr
    assert file.stat().st_mode & 0o777 == 0o600

    with tarfile.open(file) as archive:
        files = {
            member.name.partition("/")[2]: (archive.extractfile(member) or sys.stdin.buffer).read().decode()
            for member in archive.getmembers()
        }

    return done.stdout + done.stderr, files


def list_forms(value: str) -> list[str]:
    encoded = base64.b64encode(value.encode()).decode().rstrip("=")
    return [value, quote(value, safe=""), encoded, json.dumps(value)[1:-1]]


def test_bundle_holds_no_secret(server: ServerProcess, home: Path, planted_secrets: list[str], tmp_path: Path):
    # Other tests write bundles as well.
    file = tmp_path / "without-secrets.tar.gz"
    output, files = make_bundle(server, home, file)
    assert set(files) >= {
        "versions.json",
        "settings.json",
        "doctor.json",
        "disk.json",
        "deployments.json",
        "health.json",
        "metrics.txt",
        "left-out.json",
        "logs/listener.log",
        "logs/ingress.log",
        "logs/postgres.log",
    }

    for name, text in files.items():
        for value in planted_secrets:
            for form in list_forms(value):
                assert form not in text, f"{name} holds {value}"

        if name.endswith(".json"):
            json.loads(text)

    assert json.loads(files["left-out.json"]) == []
    assert "a line that helps" in files["logs/listener.log"]
    entries = httpx2.get(f"{server.url}/audit-log?action=support_bundle.create", headers={"X-Api-Key": KEY}).json()
    assert [each["object_name"] for each in entries["items"]].count(file.name) == 1
    assert any(name.startswith("logs/deployments/") for name in files)
    assert json.loads(files["deployments.json"])[0]["name"] == "secretive"
    settings = {each["name"]: each for each in json.loads(files["settings.json"])}
    assert settings["OIDC_CLIENT_SECRET"]["is_set"]

    assert settings["OIDC_CLIENT_SECRET"]["value"] is None
    assert json.loads(files["doctor.json"])["findings"]
    assert json.loads(files["disk.json"])["taken"]
    assert "look into it before you send it" in output


@pytest.mark.thorough
def test_output_of_deployments_is_left_out_if_their_secrets_are_unknown(
    server: ServerProcess, home: Path, planted_secrets: list[str], tmp_path: Path
):
    key = home / "master-key"
    kept = key.read_text()
    key.write_text(base64.b64encode(os.urandom(32)).decode() + "\n")

    try:
        output, files = make_bundle(server, home, tmp_path / "bundle.tar.gz")
    finally:
        key.write_text(kept)

    assert "left out: logs and states of deployments" in output
    assert not [name for name in files if "deployments" in name or "logs" in name]
    assert SECRET in planted_secrets
    assert not [name for name, text in files.items() if SECRET in text]


@pytest.mark.thorough
def test_file_is_never_replaced(server: ServerProcess, home: Path, tmp_path: Path):
    (tmp_path / "bundle.tar.gz").write_text("kept")
    with pytest.raises(AssertionError, match="cannot write"):
        make_bundle(server, home, tmp_path / "bundle.tar.gz")

    assert (tmp_path / "bundle.tar.gz").read_text() == "kept"


def test_cut_line_of_a_long_log_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The line is cut within the secret, so that its rest is not masked. Some characters take several bytes."""
    monkeypatch.setattr("portside.operate.bundle.TAIL_BYTES", 40)
    log = tmp_path / "server.log"
    file = tmp_path / "bundle.tar.gz"
    log.write_text(f"key {SECRET}\n" + "é" * 10 + "\n", "utf-8")

    bundle = Bundle(Masks([SECRET]))
    bundle.add_log("cut.log", log)
    log.write_text("short\n")
    bundle.add_log("whole.log", log)
    bundle.write(file)

    with tarfile.open(file) as archive:
        texts = [(archive.extractfile(member) or sys.stdin.buffer).read().decode() for member in archive]

    assert texts == ["é" * 10 + "\n", "short\n"]


async def test_database_without_tables_leaves_out_what_is_in_them(
    fresh_database: Callable[[], Awaitable[str]], tmp_path: Path
):
    """As after a first start that failed, for which support is needed most."""
    (tmp_path / "home").mkdir(mode=0o700)
    SecretBox.from_file(tmp_path / "home" / "master-key")
    installation = ExaminedInstallation(home=tmp_path / "home", database_url=await fresh_database(), has_listener=False)
    left_out = "\n".join(await write_bundle(installation, {}, {}, tmp_path / "bundle.tar.gz"))
    assert "logs and states of deployments" in left_out
    assert "disk.json" in left_out


def test_long_words_are_masked_in_time():
    text = "eA" * 200_000
    assert Masks([]).mask(f"{text} my_password_of_x={text}") == f"{text} my_password_of_x=***"


@pytest.mark.parametrize(
    "secret",
    [
        "lsv2_pt_0123456789abcdef0123456789abcdef_0123456789",
        "sk-proj-0123456789abcdefABCDEF",
        "pk-lf-0123456789abcdef",
        "ghp_0123456789abcdefABCDEF",
        "ghs_0123456789abcdefABCDEF",
        "glpat-0123456789abcdefABCDEF",
        "xoxb-0123456789-abcdefABCDEF",
        "AKIA0123456789ABCDEF",
        "hf_0123456789abcdefABCDEF",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
        "Bearer 0123456789",
        "basic dXNlcjpwYXNzd29yZA==",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\nMIIE, and the log ends here",
        "https://user:passw0rd@git.example.com",
    ],
)
def test_what_looks_like_a_secret_is_masked_although_nobody_knows_it(secret: str) -> None:
    masked = Masks([]).mask(f"before {secret}")
    rest = secret.removeprefix("Bearer ").removeprefix("basic ")
    assert masked.startswith("before ")
    assert "***" in masked
    assert rest not in masked and "passw0rd" not in masked


def test_values_of_variables_and_their_forms():
    found = list_secret_values(
        {"A_KEYS": "first-one,second-one", "DB": "postgresql://u:p%40ssword@h/d", "PLAIN": "visible"}
    )
    assert {"first-one", "second-one", "p@ssword", "p%40ssword"} <= set(found)
    assert "visible" not in found
    masks = Masks(["short", "first-one"])
    assert masks.mask("short first-one visible") == "short *** visible"
