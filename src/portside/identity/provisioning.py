"""Members from OpenID Connect: admits people by the claims of a provider, and gives them the roles of its groups.

Issuer and subject identify a person. At the first sign-in the verified e-mail finds a member that an admin added, or a
new member is made. A member that is found and is no admin loses its password, sessions and personal keys. Workspaces
and organization roles that the role map names belong to the provider: each sign-in applies them again. Everything else
stays as admins set it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec

from portside.identity.authentication import Authenticator
from portside.identity.oidc import OidcNotAllowed
from portside.identity.roles import ORGANIZATION_ADMIN, ORGANIZATION_ROLES, WORKSPACE_ROLES
from portside.identity.sql import sql
from portside.identity.types import Email
from portside.kernel.db import Database, Transaction
from portside.kernel.errors import UserMistake
from portside.kernel.ids import uuid7
from portside.kernel.logs import get_logger
from portside.kernel.settings import split_names

log = get_logger(__name__)
NEW_MEMBER = "Organization User"
ANY_DOMAIN = "*"
NO_ROLE = "none"
_MAX_GROUPS = 2000


class RoleGrant(msgspec.Struct, frozen=True):
    """A role in the organization, or in a workspace: the one with the handle, or the first one."""

    role: str
    handle: str | None = None

    @property
    def is_of_organization(self) -> bool:
        """Whether this is a role in the organization."""
        return self.role in ORGANIZATION_ROLES


class AdmissionRules(msgspec.Struct, frozen=True):
    """Who may sign in, and with which roles. Without a default role, people without a mapped group may not."""

    domains: frozenset[str]
    groups_claim: str
    role_map: Mapping[str, RoleGrant]
    default: RoleGrant | None

    @classmethod
    def read(cls, *, domains: str, groups_claim: str, role_map: str, default_role: str) -> "AdmissionRules":
        """Read the settings. Raises UserMistake, which names the bad one."""
        allowed_domains = frozenset(split_names(domains.lower()))
        if not allowed_domains:
            raise UserMistake(
                "setting OIDC_ALLOWED_DOMAINS: name the e-mail domains whose people may sign in, or * for all that the "
                "provider knows"
            )

        try:
            role_texts = msgspec.json.decode(role_map, type=dict[str, str]) if role_map else {}
        except msgspec.MsgspecError as exc:
            raise UserMistake(f"setting OIDC_ROLE_MAP: must be a JSON object of strings: {exc}") from exc

        default = None if default_role == NO_ROLE else _parse_grant(default_role, "OIDC_DEFAULT_ROLE")
        grants = {group: _parse_grant(text, "OIDC_ROLE_MAP") for group, text in role_texts.items()}
        return cls(domains=allowed_domains, groups_claim=groups_claim, role_map=grants, default=default)

    def get_grants(self, claims: Mapping[str, Any]) -> list[RoleGrant]:
        """Return the roles that a person's groups give, or the default one. Raises OidcNotAllowed without any."""
        claim = claims.get(self.groups_claim) or []
        groups: Sequence[Any] = claim if isinstance(claim, list) else [claim]

        # Some providers send objects; only a text can be in the map.
        names = [group for group in groups[:_MAX_GROUPS] if isinstance(group, str)]
        grants = [self.role_map[name] for name in names if name in self.role_map]
        if grants:
            return grants
        if self.default is None:
            raise OidcNotAllowed("None of your groups may use this platform; ask an administrator of it.")

        return [self.default]

    def get_email(self, claims: Mapping[str, Any]) -> str:
        """Return the verified e-mail of a person. Raises OidcNotAllowed."""
        try:
            email = msgspec.convert(claims.get("email"), Email)
        except msgspec.ValidationError as exc:
            raise OidcNotAllowed(
                "The provider sent no valid e-mail address of yours; an administrator can let it send the claim email."
            ) from exc

        # Microsoft Entra ID says in `xms_edov` what others say in `email_verified`.
        is_verified = claims.get("email_verified", claims.get("xms_edov"))
        if is_verified is not True and str(is_verified).lower() not in {"true", "1"}:
            raise OidcNotAllowed("The provider has not verified your e-mail address.")
        if ANY_DOMAIN not in self.domains and email.rpartition("@")[2].lower() not in self.domains:
            raise OidcNotAllowed("People with e-mail addresses of this domain may not use this platform.")

        return email


def _parse_grant(text: str, name: str) -> RoleGrant:
    handle, _, role = text.rpartition("/")
    if role not in WORKSPACE_ROLES and (role not in ORGANIZATION_ROLES or handle):
        names = ", ".join([*ORGANIZATION_ROLES, *WORKSPACE_ROLES])
        raise UserMistake(f"setting {name}: {text} is neither a role nor WORKSPACE/ROLE; roles are {names}")

    return RoleGrant(role, handle or None)


class _Person(msgspec.Struct, frozen=True):
    """The person who signs in, by verified claims, and the organization and first workspace that they join."""

    issuer: str
    subject: str
    email: str
    full_name: str | None
    organization_id: UUID
    first_workspace_id: UUID


async def admit(db: Database, authenticator: Authenticator, rules: AdmissionRules, claims: Mapping[str, Any]) -> UUID:
    """Return the member that verified claims belong to, with the roles of the groups. Raises OidcNotAllowed.

    A person who has lost all groups loses the roles that the groups gave, and is refused.
    """
    email = rules.get_email(claims)
    name = claims.get("name")
    full_name = name[:200] if isinstance(name, str) and name.isprintable() and name else None
    async with db.transaction() as tx:
        first_workspace = await tx.fetchrow(sql.first_workspace)
        assert first_workspace is not None  # noqa: S101 - set_up ran before
        person = _Person(
            issuer=claims["iss"],
            subject=claims["sub"],
            email=email,
            full_name=full_name,
            organization_id=first_workspace["organization_id"],
            first_workspace_id=first_workspace["id"],
        )

        # Two first sign-ins of one person at the same time must make one member.
        await tx.fetchval(sql.lock_organization, id=person.organization_id)
        user_id = await _find_user(tx, person)
        try:
            grants = rules.get_grants(claims)
            refusal = None
        except OidcNotAllowed as exc:
            grants = []
            refusal = exc

        if user_id is None and refusal is None:
            user_id = await _add_user(tx, person)
            await _apply_grants(tx, rules, person, user_id=user_id, grants=grants)
        elif user_id is not None and rules.role_map:
            await _apply_grants(tx, rules, person, user_id=user_id, grants=grants)

    if user_id is not None:
        authenticator.forget_user(user_id)

    if refusal is not None or user_id is None:
        raise refusal or OidcNotAllowed

    return user_id


async def _find_user(tx: Transaction, person: _Person) -> UUID | None:
    """Return the member that the person is, if any. Raises OidcNotAllowed."""
    user = await tx.fetchrow(sql.user_of_subject, issuer=person.issuer, subject=person.subject)
    if user is not None and user["removed_at"] is None:
        return UUID(str(user["id"]))

    rows = await tx.fetch(
        sql.users_of_email, organization_id=person.organization_id, email=person.email, issuer=person.issuer
    )
    if user is not None and not rows:
        raise OidcNotAllowed("You were removed from this platform; an administrator can add you again.")
    if not rows:
        return None

    if len(rows) > 1 or rows[0]["is_linked"]:
        # The address may have gone to somebody else, who must not inherit the account.
        raise OidcNotAllowed("Your e-mail address belongs to another account here; ask an administrator.")

    user_id = UUID(str(rows[0]["id"]))
    # Whoever added the member may know its password or have a key, and would get the roles of the person's groups.
    await tx.fetchval(sql.lock_user, id=user_id)
    await tx.execute(sql.end_credentials, user_id=user_id, admin_role=ORGANIZATION_ADMIN)
    await tx.execute(sql.link_subject, issuer=person.issuer, subject=person.subject, user_id=user_id)

    return user_id


async def _add_user(tx: Transaction, person: _Person) -> UUID:
    user_id = uuid7()
    ids = {"organization_id": person.organization_id, "user_id": user_id}
    inserted_id = await tx.fetchval(
        sql.insert_user,
        id=user_id,
        organization_id=person.organization_id,
        email=person.email,
        full_name=person.full_name,
        password=None,
    )
    if inserted_id is None:
        raise OidcNotAllowed("Your e-mail address belongs to another account here; ask an administrator.")

    await tx.execute(sql.insert_organization_member, **ids, role=NEW_MEMBER)
    await tx.execute(sql.link_subject, issuer=person.issuer, subject=person.subject, user_id=user_id)
    log.info("member added at the first sign-in", user_id=str(user_id), issuer=person.issuer)

    return user_id


async def _apply_grants(
    tx: Transaction, rules: AdmissionRules, person: _Person, *, user_id: UUID, grants: Sequence[RoleGrant]
) -> None:
    """Give the member the highest role in each workspace and in the organization that a group or the default gives.

    Roles in workspaces of the map that no group gives any more are taken away.
    """
    mapped = [*rules.role_map.values(), *([rules.default] if rules.default else [])]
    workspaces = await _find_workspaces(tx, person, {grant.handle for grant in (*mapped, *grants)})

    # From the lowest role to the highest, which replaces the others.
    roles: dict[UUID, str] = {}
    for name in reversed(WORKSPACE_ROLES):
        for grant in grants:
            if grant.role == name and grant.handle in workspaces:
                roles[workspaces[grant.handle]] = name

    mapped_ids = {
        workspaces[grant.handle] for grant in mapped if not grant.is_of_organization and grant.handle in workspaces
    }
    await tx.execute(sql.leave_workspaces, user_id=user_id, workspace_ids=sorted(mapped_ids - roles.keys()))

    for workspace_id, role in roles.items():
        await tx.execute(sql.grant_workspace_role, workspace_id=workspace_id, user_id=user_id, role=role)

    if any(grant.is_of_organization for grant in mapped):
        role_names = {grant.role for grant in grants}
        highest_role = next((name for name in ORGANIZATION_ROLES if name in role_names), NEW_MEMBER)
        await _set_organization_role(tx, person, user_id, highest_role)


async def _find_workspaces(tx: Transaction, person: _Person, handles: Iterable[str | None]) -> dict[str | None, UUID]:
    """Return the ids of workspaces by their handles, and of the first one by None."""
    names = sorted(handle for handle in handles if handle is not None)
    rows = await tx.fetch(sql.workspaces_of_handles, organization_id=person.organization_id, handles=names)

    ids: dict[str | None, UUID] = {row["tenant_handle"]: row["id"] for row in rows}
    if missing := set(names) - ids.keys():
        log.warning("OIDC_ROLE_MAP names workspaces that do not exist", handles=sorted(map(str, missing)))

    return {None: person.first_workspace_id, **ids}


async def _set_organization_role(tx: Transaction, person: _Person, user_id: UUID, role: str) -> None:
    member = {"organization_id": person.organization_id, "user_id": user_id}
    other_admins = await tx.fetchval(sql.count_other_admins, **member, role=ORGANIZATION_ADMIN)
    (row,) = await tx.fetch(sql.list_organization_members, **member)
    loses_admin = row["role"] == ORGANIZATION_ADMIN and role != ORGANIZATION_ADMIN
    if loses_admin and not other_admins:
        log.warning("the last admin keeps the role, although no group gives it any more", user_id=str(user_id))
        return

    await tx.execute(sql.set_organization_role, **member, role=role)
