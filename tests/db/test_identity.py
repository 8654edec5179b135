"""API keys in the database: only hashes are stored, and revoked or expired keys leave every cache."""

import asyncio
import contextlib
import json
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import uuid4

import msgspec
import pytest
from starlette.requests import HTTPConnection

from portside.identity import sessions
from portside.identity.authentication import Authenticator, SessionEnded, hash_token, read_credential
from portside.identity.cli_authorizations import (
    Decision,
    RedirectTarget,
    UserCodeUnknown,
    approve_browser,
    create_device_codes,
    decide_terminal,
    get_pending_terminal,
)
from portside.identity.first_start import get_first_owner, set_up
from portside.identity.keys import (
    KeyFilter,
    Owner,
    Revocation,
    create_key,
    expire_key,
    is_valid_key,
    list_granted_permissions,
    list_keys,
    revoke_key,
)
from portside.identity.logins import check_credentials, set_password
from portside.identity.members import LastAdmin, _may_in_workspace, add_member, remove_member, set_role
from portside.identity.oidc import OidcClient, OidcNotAllowed
from portside.identity.provisioning import AdmissionRules, admit
from portside.identity.roles import ORGANIZATION_ADMIN
from portside.identity.sessions import Origin, SignIn, begin_session
from portside.identity.sign_in_links import LinkSpent, create_link, redeem_link
from portside.identity.sql import sql
from portside.identity.types import Actor, Credentials, KeyRequest, MemberRequest, NewPassword, WorkspaceRequest
from portside.identity.workspaces import create_workspace, list_workspaces
from portside.kernel.db import Database, Record
from portside.kernel.errors import Forbidden, Invalid, NotFound, Unauthorized, UserMistake
from portside.kernel.migrations import migrate
from tests.conftest import eventually

PACKAGES = ("portside.identity",)

TABLES = ("organizations", "workspaces", "users", "api_keys")


@pytest.fixture
async def key(db) -> str:
    key = await set_up(db)
    assert key is not None
    return key


def of_workspace(actor: Actor) -> KeyFilter:
    return KeyFilter(organization_id=actor.organization_id, workspace_id=actor.workspace_id)


async def new_key(db: Database, **request) -> str:
    return (await create_key(db, await get_first_owner(db), KeyRequest(**request))).key


async def test_concurrent_first_starts_create_one_organization(fresh_database) -> None:
    url = await fresh_database()
    databases = [await Database.connect(url) for _ in range(4)]
    await migrate(databases[0], ["portside.identity"])
    keys = await asyncio.gather(*(set_up(db) for db in databases))
    assert [key is not None for key in keys].count(True) == 1

    for table in TABLES:
        assert await databases[0].pool.fetchval(f"select count(*) from {table}") == 1, table

    assert await set_up(databases[0], api_key="another") is None

    for db in databases:
        await db.close()


async def test_the_first_key_may_be_given(db) -> None:
    given = "a-key-of-my-own-0123456789"
    assert await set_up(db, api_key=given) == given
    actor = await Authenticator(db).authenticate(given)
    assert actor.may("anything:at-all")
    assert actor.user_email == "admin@localhost"


async def test_an_invalid_first_key_is_refused(db) -> None:
    for bad in ("x" * 513, "with space", "tail\n", "é", "\x1b"):
        with pytest.raises(UserMistake, match="PORTSIDE_API_KEY"):
            await set_up(db, api_key=bad)

    assert await set_up(db, api_key="x" * 512) is not None


async def test_only_the_hash_of_a_key_is_kept(db, key) -> None:
    other = await new_key(db)
    rows = [row for table in TABLES for row in await db.pool.fetch(f"select * from {table}")]

    dump = "\n".join(str(tuple(row)) for row in rows)
    for secret in (key, other):
        assert secret not in dump
        assert secret.split("_")[2] not in dump
        assert str(hash_token(secret)) in dump, "the dump shows what is kept"


async def test_short_keys_show_little(db, key) -> None:
    for given in ("k", "tiny", "twenty-three-characters", "exactly-twenty-four-char"):
        made = await create_key(db, await get_first_owner(db), KeyRequest(), key=given)
        assert len(made.short_key.replace("…", "")) <= len(given) // 2, "most of a key stays hidden"

    assert made.short_key == "exactly-…char"


@pytest.mark.parametrize("bad", [None, "", "wrong", "lsv2_pt_" + "0" * 43, "x" * 513, "x" * 1_000_000, "\0", "é"])
async def test_an_invalid_key_is_unauthorized(db, key, bad) -> None:
    with pytest.raises(Unauthorized):
        await Authenticator(db).authenticate(bad)


@pytest.mark.parametrize("change", [str.upper, lambda key: key + " ", lambda key: key[:-1], lambda key: " " + key])
async def test_a_similar_key_is_unauthorized(db, key, change) -> None:
    with pytest.raises(Unauthorized):
        await Authenticator(db).authenticate(change(key))


async def test_a_revoked_key_leaves_the_cache_at_once(db, key) -> None:
    authenticator = Authenticator(db)
    admin = await authenticator.authenticate(key)
    other = await new_key(db)
    actor = await authenticator.authenticate(other)

    await revoke_key(db, authenticator, admin, Revocation(actor.key_id, of_workspace(admin)))
    with pytest.raises(Unauthorized):
        await authenticator.authenticate(other)

    with pytest.raises(NotFound):
        await revoke_key(db, authenticator, admin, Revocation(actor.key_id, of_workspace(admin)))

    assert [listed.id for listed in await list_keys(db, of_workspace(admin))] == [admin.key_id]


async def test_key_that_is_revoked_while_it_is_authenticated_is_not_cached(db, key, monkeypatch) -> None:
    authenticator = Authenticator(db)
    admin = await authenticator.authenticate(key)
    other = await create_key(db, await get_first_owner(db), KeyRequest())
    execute = db.execute

    async def revoke_first(query, **values):
        monkeypatch.setattr(db, "execute", execute)
        await revoke_key(db, authenticator, admin, Revocation(other.id, of_workspace(admin)))
        return await execute(query, **values)

    # The row is read before this statement, and the actor is cached after it.
    monkeypatch.setattr(db, "execute", revoke_first)
    assert (await authenticator.authenticate(other.key)).key_id == other.id
    with pytest.raises(Unauthorized):
        await authenticator.authenticate(other.key)


async def test_a_revoked_key_expires_from_other_caches(db, key, monkeypatch) -> None:
    monkeypatch.setattr("portside.identity.authentication.CACHE_S", -1.0)
    here = Authenticator(db)
    there = Authenticator(db)
    other = await new_key(db)
    actor = await there.authenticate(other)
    admin = await here.authenticate(key)

    await revoke_key(db, here, admin, Revocation(actor.key_id, of_workspace(admin)))
    with pytest.raises(Unauthorized):
        await there.authenticate(other)


async def test_a_key_cannot_revoke_itself_nor_one_of_another_workspace(db, key) -> None:
    authenticator = Authenticator(db)
    admin = await authenticator.authenticate(key)
    with pytest.raises(Forbidden):
        await revoke_key(db, authenticator, admin, Revocation(admin.key_id, of_workspace(admin)))

    await db.pool.execute(
        "insert into workspaces (id, organization_id, display_name, tenant_handle)"
        " select gen_random_uuid(), id, 'Other', 'other' from organizations"
    )

    other = await db.pool.fetchval("select id from workspaces where tenant_handle = 'other'")
    foreign = await create_key(db, Owner(admin.organization_id, other), KeyRequest())
    with pytest.raises(NotFound):
        await revoke_key(db, authenticator, admin, Revocation(foreign.id, of_workspace(admin)))

    assert foreign.id not in [listed.id for listed in await list_keys(db, of_workspace(admin))]


async def test_a_list_of_service_keys_neither_shows_nor_revokes_keys_of_users(db, key) -> None:
    authenticator = Authenticator(db)
    admin = await authenticator.authenticate(key)
    personal = await create_key(db, Owner(admin.organization_id, admin.workspace, admin.user_id), KeyRequest())
    services = msgspec.structs.replace(of_workspace(admin), service_keys_only=True)
    assert await list_keys(db, services) == []
    with pytest.raises(NotFound):
        await revoke_key(db, authenticator, admin, Revocation(personal.id, services, force=True))

    assert (await Authenticator(db).authenticate(personal.key)).key_id == personal.id


async def test_only_a_key_that_works_is_one_of_this_platform(db, key) -> None:
    admin = await Authenticator(db).authenticate(key)
    expired, revoked, valid = [await create_key(db, await get_first_owner(db), KeyRequest()) for _ in range(3)]
    await db.pool.execute("update api_keys set expires_at = now() where id = $1", expired.id)
    await revoke_key(db, Authenticator(db), admin, Revocation(revoked.id, of_workspace(admin)))
    assert [await is_valid_key(db, each.key) for each in (expired, revoked, valid)] == [False, False, True]


async def test_a_key_that_expires_soon_does_not_live_longer_after_a_rotation(db, key) -> None:
    soon = datetime.now(UTC) + timedelta(minutes=1)
    made = await create_key(db, await get_first_owner(db), KeyRequest(expires_at=soon))
    await expire_key(db, made.id, after=timedelta(hours=1))
    assert await db.pool.fetchval("select expires_at from api_keys where id = $1", made.id) == soon


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, ("key", None)),
        ({"cookie": "portside_session=one; other=two"}, ("cookie", "one")),
        # A page of a subdomain may have set the second one.
        ({"cookie": "portside_session=one; portside_session=two"}, ("key", None)),
        ({"cookie": "portside_session=one", "authorization": "Bearer two"}, ("bearer", "two")),
        ({"authorization": "Bearer lsv2_sk_three"}, ("key", "lsv2_sk_three")),
        ({"authorization": "Bearer two", "x-api-key": "four", "cookie": "portside_session=one"}, ("key", "four")),
    ],
)
def test_one_credential_of_a_request_counts(headers: dict[str, str], expected: tuple[str, str | None]) -> None:
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "scheme": "http", "server": ("127.0.0.1", 80), "path": "/", "headers": raw}
    assert read_credential(HTTPConnection(scope)) == expected


def test_passwords_are_in_no_representation() -> None:
    """Representations end up in logs and tracebacks."""
    for value in (
        Credentials("a@example.com", "hidden"),
        NewPassword("hidden-and-long", "hidden"),
        OidcClient("https://example.com", "id", "hidden"),
    ):
        assert "hidden" not in repr(value)


def test_a_read_only_key_has_no_more_than_was_asked_for() -> None:
    assert list_granted_permissions(KeyRequest(permissions=["runs:*", "datasets:update"], read_only=True)) == [
        "runs:read"
    ]
    assert "runs:read" in list_granted_permissions(KeyRequest(read_only=True))
    assert "runs:create" not in list_granted_permissions(KeyRequest(read_only=True))


@pytest.mark.parametrize("change", ["revoked_at = now()", "expires_at = now()"])
async def test_what_a_key_has_signed_in_ends_with_it(db, key, change: str) -> None:
    authenticator = Authenticator(db)
    used = await create_key(db, await get_first_owner(db), KeyRequest())
    by_key = await authenticator.authenticate(used.key)
    admin = await authenticator.authenticate(key)
    sign_in = SignIn(kind="cookie", method="key", lifetime=timedelta(hours=1), key_id=used.id)
    session = await begin_session(db, authenticator, sign_in)
    token = (await create_link(db, by_key)).path.partition("token=")[2]
    assert [listed.id for listed in await sessions.list_all(db, authenticator, admin)] == [session.id]

    await db.pool.execute(f"update api_keys set {change} where id = $1", used.id)
    with pytest.raises(Unauthorized):
        await Authenticator(db).authenticate_session(session.token, "cookie")

    with pytest.raises(LinkSpent):
        await redeem_link(db, authenticator, token, Origin())

    assert await sessions.list_all(db, authenticator, admin) == []


async def test_a_session_of_a_key_that_expires_is_known_to_end_then(db, key) -> None:
    soon = datetime.now(UTC) + timedelta(minutes=1)
    used = await create_key(db, await get_first_owner(db), KeyRequest(expires_at=soon))
    authenticator = Authenticator(db)
    sign_in = SignIn(kind="cookie", method="key", lifetime=timedelta(hours=1), key_id=used.id)
    session = await begin_session(db, authenticator, sign_in)
    assert (await authenticator.authenticate_session(session.token, "cookie")).expires_at == soon


async def test_a_service_key_ends_only_sessions_that_it_made(db, key) -> None:
    authenticator = Authenticator(db)
    first, second = [await create_key(db, await get_first_owner(db), KeyRequest()) for _ in range(2)]
    sign_in = SignIn(kind="cookie", method="key", lifetime=timedelta(hours=1), key_id=first.id)
    session = await begin_session(db, authenticator, sign_in)
    with pytest.raises(sessions.SessionNotFound):
        await sessions.end_own(db, authenticator, await authenticator.authenticate(second.key), session.id)

    await sessions.end_own(db, authenticator, await authenticator.authenticate(first.key), session.id)
    assert await db.pool.fetchval("select count(*) from sessions") == 0


async def test_a_terminal_that_was_not_used_for_long_stays_signed_in(db, key) -> None:
    authenticator = Authenticator(db)
    admin = await authenticator.authenticate(key)
    made = {}
    for kind in ("bearer", "cookie"):
        sign_in = SignIn(kind=kind, method="password", lifetime=timedelta(days=7), user_id=admin.user_id)
        made[kind] = (await begin_session(db, authenticator, sign_in)).id

    await db.pool.execute("update sessions set last_used_at = now() - interval '2 days'")
    newest = await begin_session(db, authenticator, sign_in)
    left = {row["id"] for row in await db.pool.fetch("select id from sessions")}
    assert left == {made["bearer"], newest.id}


async def test_who_has_no_role_in_a_workspace_sees_none(db, key) -> None:
    admin = await Authenticator(db).authenticate(key)
    assert len(await list_workspaces(db, admin)) == 1
    outsider = msgspec.structs.replace(
        admin, workspace=None, user_id=uuid4(), role_permissions=frozenset({"organization:read"})
    )
    assert await list_workspaces(db, outsider) == []


def test_a_limited_key_of_a_workspace_admin_removes_nobody_who_has_more() -> None:
    user = Actor(
        uuid4(), "…", uuid4(), uuid4(), "w", "w", uuid4(), "a@b", frozenset({"*"}), role_permissions=frozenset()
    )
    row = cast("Record", {"actor_role": "Admin"})
    assert _may_in_workspace(user, row, "deployments:delete")
    limited = msgspec.structs.replace(user, permissions=frozenset({"organization:manage"}))
    assert not _may_in_workspace(limited, row, "deployments:delete")
    assert not _may_in_workspace(user, cast("Record", {"actor_role": "Viewer"}), "deployments:delete")


async def test_an_expired_key_is_refused_even_if_cached(db, key, monkeypatch) -> None:
    authenticator = Authenticator(db)
    soon = datetime.now(UTC) + timedelta(hours=1)
    short_lived = await new_key(db, expires_at=soon)
    assert (await authenticator.authenticate(short_lived)).expires_at == soon

    # Postgres has a clock of its own.
    await db.pool.execute("update api_keys set expires_at = now() where expires_at is not null")
    monkeypatch.setattr("portside.identity.authentication.now", lambda: soon)

    for ring in (authenticator, Authenticator(db)):
        with pytest.raises(Unauthorized):
            await ring.authenticate(short_lived)


@pytest.mark.parametrize(
    "text", ["2020-01-01T00:00:00+00:00", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"]
)
async def test_an_invalid_expiry_is_refused(db, key, text: str) -> None:
    with pytest.raises(Invalid):
        await new_key(db, expires_at=datetime.fromisoformat(text))


def test_permissions() -> None:
    def actor(*permissions: str) -> Actor:
        return Actor(uuid4(), "…", uuid4(), uuid4(), "w", "w", None, None, frozenset(permissions))

    assert actor("runs:read").may("runs:read")
    assert not actor("runs:read").may("runs:create")
    assert not actor("runs:read").may("runs:*")
    assert actor("runs:*").may("runs:create")
    assert actor("runs:*").may("runs:*")
    assert not actor("runs:*").may("run:create")
    assert not actor("runs:*").may("*")

    assert actor("*").may("*")
    assert not actor().may("runs:read")


async def test_last_used_at_of_a_key_is_recorded(db, key) -> None:
    authenticator = Authenticator(db)
    began_at = datetime.now(UTC)
    admin = await authenticator.authenticate(key)
    (listed,) = await list_keys(db, of_workspace(admin))
    assert listed.last_used_at is not None
    assert began_at <= listed.last_used_at <= datetime.now(UTC)


async def test_sign_in_with_the_old_password_ends_with_it(db: Database, key: str) -> None:
    actor = await Authenticator(db).authenticate(key)
    authenticator = Authenticator(db)
    await set_password(db, authenticator, actor, NewPassword(new="the old password"))
    credentials = Credentials(actor.user_email or "", "the old password")
    old = await check_credentials(db, credentials, Origin())
    sign_in = SignIn(
        kind="bearer", method="password", lifetime=timedelta(hours=1), user_id=old.id, password=old.password
    )

    async with db.transaction() as tx:
        await tx.fetchval(sql.lock_user, id=actor.user_id)
        await tx.execute(sql.set_password, id=actor.user_id, session_id=None, password=b"another")
        late = asyncio.create_task(begin_session(db, authenticator, sign_in))
        await until_a_statement_waits(db)

    with pytest.raises(SessionEnded):
        await late

    await db.pool.execute("update users set password = $1", old.password)
    async with db.transaction() as tx:
        await begin_session(tx, authenticator, sign_in)
        body = NewPassword(current="the old password", new="the new password")
        changed = asyncio.create_task(set_password(db, authenticator, actor, body))
        await until_a_statement_waits(db)

    await changed
    assert await db.pool.fetchval("select count(*) from sessions") == 0
    assert (await begin_session(db, authenticator, msgspec.structs.replace(sign_in, password=None))).token


async def until_a_statement_waits(db: Database) -> None:
    count = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    await eventually(lambda: db.pool.fetchval(count))


async def set_new_password(db: Database, _admin: Actor, member: Actor) -> None:
    body = NewPassword(current="the old password", new="the new password")
    await set_password(db, Authenticator(db), member, body)


async def remove(db: Database, admin: Actor, member: Actor) -> None:
    assert member.user_id is not None
    await remove_member(db, Authenticator(db), admin, member.user_id)


async def sign_in_at_provider(db: Database, _admin: Actor, member: Actor) -> None:
    """Sign in with OpenID Connect for the first time."""
    await admit(db, Authenticator(db), build_rules(), build_claims(member.user_email or ""))


@pytest.mark.parametrize("change", [set_new_password, remove, sign_in_at_provider])
async def test_codes_links_and_sessions_of_a_member_end_together(db: Database, key: str, change: Any) -> None:
    """Each of them would give its holder another session."""
    authenticator = Authenticator(db)
    admin = await authenticator.authenticate(key)
    body = MemberRequest("ann@example.com", password="the old password")
    member_id = (await add_member(db, admin, body)).id
    sign_in = SignIn(kind="bearer", method="password", lifetime=timedelta(hours=1), user_id=member_id)
    session = await begin_session(db, authenticator, sign_in)
    member = await authenticator.authenticate_session(session.token, "bearer")

    others = await begin_session(db, authenticator, msgspec.structs.replace(sign_in, user_id=admin.user_id))
    for actor in (member, admin):
        await create_link(db, actor)
        await approve_browser(db, actor, RedirectTarget("http://127.0.0.1:1/callback", "challenge", None), "127.0.0.1")

    await change(db, admin, msgspec.structs.replace(member, session_id=None))

    for table in ("sessions", "sign_in_links", "cli_authorizations"):
        owners = [row["user_id"] for row in await db.pool.fetch(f"select user_id from {table}")]
        assert owners == [admin.user_id], table

    assert (await authenticator.authenticate_session(others.token, "bearer")).user_id == admin.user_id


async def test_the_first_decision_about_a_terminal_counts(db: Database, key: str) -> None:
    """A click that waits for another one does not change what that has decided."""
    actor = await Authenticator(db).authenticate(key)
    codes = await create_device_codes(db, "server-7", "127.0.0.1")
    terminal = await get_pending_terminal(db, actor, codes.user_code)
    async with db.transaction() as tx:
        owner = {"user_id": actor.user_id, "key_id": None}
        await tx.execute(sql.decide_cli_authorization, id=terminal.id, decision=Decision.DENIED, **owner)
        late = asyncio.create_task(decide_terminal(db, actor, codes.user_code, approves=True))
        await until_a_statement_waits(db)

    with pytest.raises(UserCodeUnknown):
        await late

    assert await db.pool.fetchval("select decision from cli_authorizations") == Decision.DENIED


async def test_two_admins_cannot_remove_each_other(db: Database, key: str) -> None:
    """The second one waits for the first, and sees that nobody else is left."""
    authenticator = Authenticator(db)
    admin = await authenticator.authenticate(key)
    assert admin.user_id is not None
    other = (await add_member(db, admin, MemberRequest("ann@example.com", role_id=ORGANIZATION_ADMIN))).id
    async with db.transaction() as tx:
        await tx.fetchval(sql.lock_organization, id=admin.organization_id)
        await tx.execute(sql.remove_user, organization_id=admin.organization_id, user_id=other)
        late = [
            asyncio.create_task(remove_member(db, authenticator, admin, admin.user_id)),
            asyncio.create_task(
                set_role(db, authenticator, admin, admin.user_id, role_name="Organization User"),
            ),
        ]
        await until_a_statement_waits(db)

    for change in late:
        with pytest.raises(LastAdmin):
            await change


def build_rules(**roles: str) -> AdmissionRules:
    role_map = json.dumps({"admins": ORGANIZATION_ADMIN, **roles})
    return AdmissionRules.read(domains="*", groups_claim="groups", role_map=role_map, default_role="Viewer")


def build_claims(email: str, *groups: str) -> dict[str, Any]:
    return {
        "iss": "https://provider.example",
        "sub": email,
        "email": email,
        "email_verified": True,
        "groups": list(groups),
    }


async def read_roles(db: Database, email: str) -> dict[str, str]:
    """Return the roles of a member: in the organization, and in workspaces by their handles."""
    of_organization = """
        select o.role from organization_members o join users u on u.id = o.user_id where u.email = $1
    """
    of_workspaces = """
        select w.tenant_handle, m.role from workspace_members m
        join users u on u.id = m.user_id join workspaces w on w.id = m.workspace_id where u.email = $1
    """
    rows = await db.pool.fetch(of_workspaces, email)
    return {"organization": await db.pool.fetchval(of_organization, email), **{row[0]: row[1] for row in rows}}


async def test_groups_give_roles_in_the_workspaces_that_the_map_names(db: Database, key: str) -> None:
    admin = await Authenticator(db).authenticate(key)
    for name in ("Team", "Other"):
        await create_workspace(db, admin, WorkspaceRequest(name))

    rules = build_rules(devs="team/Editor", leads="team/Admin", lost="nowhere/Admin")
    await admit(db, Authenticator(db), rules, build_claims("ann@example.com", "devs", "leads", "lost"))
    assert await read_roles(db, "ann@example.com") == {"organization": "Organization User", "team": "Admin"}

    # A role that an admin gave in a workspace that the map does not name stays.
    add = """
        insert into workspace_members (workspace_id, user_id, role)
        select w.id, u.id, 'Editor' from workspaces w, users u
        where w.tenant_handle = 'other' and u.email = 'ann@example.com'
    """
    await db.pool.execute(add)
    await admit(db, Authenticator(db), rules, build_claims("ann@example.com", "others"))
    assert await read_roles(db, "ann@example.com") == {
        "organization": "Organization User",
        "default": "Viewer",
        "other": "Editor",
    }


async def test_role_that_a_sign_in_takes_away_is_gone_at_once(db: Database, key: str) -> None:
    authenticator = Authenticator(db)
    user_id = await admit(db, authenticator, build_rules(), build_claims("ann@example.com", "admins"))
    sign_in = SignIn(kind="cookie", method="oidc", lifetime=timedelta(hours=1), user_id=user_id)
    session = await begin_session(db, authenticator, sign_in)
    assert (await authenticator.authenticate_session(session.token, "cookie")).may("organization:manage")
    await admit(db, authenticator, build_rules(), build_claims("ann@example.com"))
    assert not (await authenticator.authenticate_session(session.token, "cookie")).may("organization:manage")


async def test_last_admin_stays_one_whatever_the_groups_say(db: Database, key: str) -> None:
    for email in ("ann@example.com", "bob@example.com"):
        await admit(db, Authenticator(db), build_rules(), build_claims(email, "admins"))

    for email, role in (("admin@localhost", "Organization User"), ("ann@example.com", None), ("bob@example.com", None)):
        if role is None:
            await admit(db, Authenticator(db), build_rules(), build_claims(email))
        else:
            change = "update organization_members set role = $2 where user_id = (select id from users where email = $1)"
            await db.pool.execute(change, email, role)

    assert (await read_roles(db, "ann@example.com"))["organization"] == "Organization User"
    assert (await read_roles(db, "bob@example.com"))["organization"] == ORGANIZATION_ADMIN


@pytest.mark.parametrize(
    ("claims", "is_verified"),
    [
        ({"email_verified": True}, True),
        ({"email_verified": "true"}, True),
        ({"email_verified": "1"}, True),
        ({"xms_edov": True}, True),
        ({"email_verified": False}, False),
        ({"email_verified": "false"}, False),
        ({"email_verified": None}, False),
        ({"email_verified": False, "xms_edov": True}, False),
        ({"xms_edov": False}, False),
        ({}, False),
    ],
)
def test_only_an_email_that_the_provider_has_verified_counts(claims: dict[str, Any], *, is_verified: bool) -> None:
    refused = contextlib.nullcontext() if is_verified else pytest.raises(OidcNotAllowed, match="not verified")
    with refused:
        assert build_rules().get_email({"email": "ann@example.com", **claims}) == "ann@example.com"
