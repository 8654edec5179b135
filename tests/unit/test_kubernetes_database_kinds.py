"""A database stays with what made it: the setting decides only about those that do not exist yet."""

from typing import Any

import pytest
from lightkube import KubeConfig
from lightkube.config.models import Cluster, User

from portside.dataplane.compute.kubernetes.api import KubernetesApi
from portside.dataplane.compute.kubernetes.cloudnative_pg import describe_backups, has_operator
from portside.listener_api import Secret
from tests.kubernetes import ApiServer, objects, revision, settings
from tests.receiver import serve

BY_OPERATOR = "cloudnative-pg"


def find_secret(*, by_operator: bool) -> dict[str, Any]:
    (secret,) = [
        one
        for one in objects(has_operator=by_operator).stores
        if one["kind"] == "Secret" and one["metadata"]["name"].endswith("-postgres")
    ]
    return secret


@pytest.mark.parametrize(
    ("existing", "operator", "expected"),
    [
        ("nothing", "none", False),
        ("nothing", BY_OPERATOR, True),
        ("a claim", BY_OPERATOR, False),
        ("a Secret of the listener's own", BY_OPERATOR, False),
        ("a Secret for the operator", BY_OPERATOR, True),
        ("a Secret for the operator", "none", True),
    ],
)
async def test_database_stays_with_what_made_it(existing: str, operator: str, *, expected: bool) -> None:
    scope = objects().scope
    name = f"{scope.name}-postgres"
    manifests: dict[str, dict[str, Any]] = {}
    if existing == "a claim":
        manifests[f"persistentvolumeclaims/{name}"] = {"metadata": {"name": name}}
    elif existing != "nothing":
        manifests[f"secrets/{name}"] = find_secret(by_operator=existing == "a Secret for the operator")

    async with serve(ApiServer(manifests)) as url:
        api = KubernetesApi(KubeConfig.from_one(cluster=Cluster(server=url), user=User(token="any")))
        assert await has_operator(api, scope, settings(kubernetes_postgres_operator=operator)) is expected
        await api.close()


def test_rollout_says_what_backs_the_database_up() -> None:
    with_store = settings(kubernetes_postgres_object_store="backups")
    own = revision(secrets=[Secret("POSTGRES_URI_CUSTOM", "postgresql://elsewhere/db")])
    assert "do not hold this database" in str(describe_backups(objects().stores))
    assert "nothing backs this database up" in str(describe_backups(objects(has_operator=True).stores))
    assert "backs this database up" in str(describe_backups(objects(None, with_store, has_operator=True).stores))
    assert describe_backups(objects(own).stores) is None
