"""Files, labels and fingerprints that an earlier listener left: a new listener must read and match them."""

from pathlib import Path
from uuid import UUID

import msgspec

from portside.dataplane.compute.containers.commands import (
    DEPLOYMENT_LABEL,
    PLAN_LABEL,
    REVISION_LABEL,
    ContainerPlan,
    Isolation,
)
from portside.dataplane.compute.containers.images import ImagePin
from portside.dataplane.compute.containers.spec import read_spec
from portside.dataplane.compute.replica import ReplicaPlan
from portside.dataplane.compute.scaling import ServerTier
from portside.dataplane.processes import ProcessIdentity
from portside.dataplane.state import DeploymentFolder, ReplicaRecord

ONE = UUID(int=1)
TWO = UUID(int=2)


def test_state_file_of_an_earlier_listener_is_read(tmp_path: Path):
    folder = tmp_path / "deployments" / str(ONE)
    folder.mkdir(parents=True)
    (folder / "state.json").write_text(
        f'{{"port":8001,"active_revision_id":"{ONE}","previous_revision_id":"{TWO}","replicas":'
        f'[{{"process":{{"pid":7,"started":"b/1"}},"revision_id":"{ONE}","tier":"api","port":9000,"fingerprint":"f"}}]}}'
    )

    state = DeploymentFolder(tmp_path, ONE).state
    assert (state.port, state.active_revision_id, state.previous_revision_id) == (8001, ONE, TWO)
    assert state.replicas == [ReplicaRecord(ProcessIdentity(7, "b/1"), ONE, ServerTier.API, 9000, "f")]


def test_image_pins_of_an_earlier_listener_are_read():
    saved = f'{{"{ONE}":{{"image":"a:1","id":"sha256:abc","was_pulled":true}}}}'
    assert msgspec.json.decode(saved, type=dict[UUID, ImagePin]) == {
        ONE: ImagePin("a:1", "sha256:abc", was_pulled=True)
    }


def test_containers_of_an_earlier_listener_match_their_plan():
    spec = read_spec(
        {
            "min_scale": 2,
            "cpu_limit": 1.5,
            "memory_limit_mb": 300,
            "labels": {"team": "a"},
            "volumes": [{"name": "x", "emptyDir": {}}],
            "volume_mounts": [{"name": "x", "mountPath": "/x", "readOnly": True}],
        }
    )

    plan = ContainerPlan(ONE, TWO, "sha256:abc", spec, {"A": "1"}, Isolation("podman", "bridge"))
    assert plan.fingerprint == "fe9776ea0e890a618b10aa73f743f662"
    assert (DEPLOYMENT_LABEL, REVISION_LABEL, PLAN_LABEL) == (
        "portside.deployment",
        "portside.revision",
        "portside.plan",
    )


def test_replicas_of_an_earlier_listener_match_their_plan():
    command = ["python", "-m", "portside"]
    config = Path("/b/langgraph.json")
    plan = ReplicaPlan(TWO, command, config, {"B": "2", "A": "1"}, Path("/o"), 1)
    assert plan.fingerprint == "6f53c75d32fcd4485561f8938b2d1d186fd4a1dea4d19be37936d1e0f65edfcb"


def test_replicas_of_another_version_of_the_platform_are_not_adopted():
    command = ["python", "-m", "portside"]
    config = Path("/b/langgraph.json")
    plans = [ReplicaPlan(TWO, command, config, {}, Path("/o"), 1, server_code=code) for code in ("", "1", "2")]
    assert len({plan.fingerprint for plan in plans}) == 3
