"""AES keys, envelopes and contexts: what is sealed opens with any key that is there, and with no other."""

import base64
import warnings

import pytest
from langgraph_sdk import Encryption

from portside.agent.encryption.context import read_header, set_context
from portside.agent.encryption.errors import CannotDecrypt, EncryptionFailed
from portside.agent.encryption.handlers import Handlers, Place
from portside.agent.encryption.keys import AesKeys
from portside.agent.encryption.opening import open_document
from portside.agent.encryption.setup import make_vault
from portside.agent.encryption.vault import Vault, sealed_key
from portside.agent.settings import AgentSettings
from portside.kernel.errors import Invalid, UserMistake

OLD, NEW = "o" * 32, "n" * 16
KWARGS = Place("run", "kwargs")
METADATA = Place("thread", "metadata")
AWKWARD = [
    {"a": {"__sealed__": 1}}, {"__sealed__": {"aes": "x", "of": "y"}}, {"a": [{"__sealed__": {"plain": 2}}]},
    {"__sealed__": {"__sealed__": {"plain": None}}}, {"a": None, "": "", "b": [1, {"c": True}]}, {}, [], "text", 5,
]  # fmt: skip


def vault(*keys: str, names: str = "*") -> Vault:
    made = make_vault(AgentSettings(graph_aes_key=",".join(keys), graph_aes_json_keys=names))
    assert made is not None
    return made


async def test_a_new_key_writes_and_the_old_one_is_still_read():
    sealed = await vault(OLD).seal_document({"title": "swordfish"}, METADATA)
    blob = await vault(OLD).seal_blob(b"swordfish", KWARGS)
    assert b"swordfish" not in blob
    rotated = vault(NEW, OLD)
    assert (await open_document(rotated, sealed))[0] == {"title": "swordfish"}
    assert (await rotated.open_blob(blob))[0] == b"swordfish"
    anew = await rotated.seal_document({"title": "swordfish"}, METADATA)
    assert (await open_document(vault(NEW), anew))[0] == {"title": "swordfish"}


async def test_a_missing_key_is_named_and_nothing_comes_back():
    sealed = await vault(OLD).seal_document({"title": "swordfish"}, METADATA)
    blob = await vault(OLD).seal_blob(b"swordfish", KWARGS)
    missing = AesKeys(OLD.encode()).ids[0]
    with pytest.raises(CannotDecrypt, match=missing):
        await open_document(vault(NEW), sealed)
    with pytest.raises(CannotDecrypt, match=missing):
        await vault(NEW).open_blob(blob)
    with pytest.raises(CannotDecrypt, match="set GRAPH_AES_KEY"):
        await Vault().open_blob(blob)


async def test_a_value_that_was_changed_or_moved_to_another_field_does_not_open():
    own = vault(OLD)
    sealed = await own.seal_document({"title": "swordfish"}, METADATA)
    envelope = sealed["title"]["__sealed__"]
    for bad in ({**envelope, "of": "name"}, {**envelope, "aes": envelope["aes"][:-8] + "AAAAAAA="}, {"aes": 1}, 7):
        with pytest.raises(CannotDecrypt):
            await open_document(own, {"title": {"__sealed__": bad}})


@pytest.mark.parametrize("names", ["*", "a,c"])
@pytest.mark.parametrize("value", AWKWARD)
async def test_any_document_comes_back_as_it_was(value, names):
    own = vault(OLD, names=names)
    assert (await open_document(own, await own.seal_document(value, METADATA)))[0] == value


async def test_named_keys_are_sealed_at_any_depth_and_the_rest_is_in_clear():
    own = vault(OLD, names="ssn, token")
    given = {"people": [{"ssn": "123", "name": "Ada"}], "token": {"deep": 1}, "graph_id": "agent"}
    sealed = await own.seal_document(given, METADATA)
    assert sealed["people"][0]["name"] == "Ada"
    assert sealed["graph_id"] == "agent"
    assert "123" not in str(sealed)
    assert "deep" not in str(sealed)
    assert (await open_document(own, sealed))[0] == given


async def test_what_statements_look_for_in_a_runs_kwargs_stays_in_clear():
    given = {
        "input": {"word": "swordfish"}, "langsmith_tracer": {"project_name": "p"},
        "config": {"tags": ["t"], "configurable": {"graph_id": "agent"}, "metadata": {"graph_id": "agent"}},
    }  # fmt: skip
    sealed = await vault(OLD).seal_document(given, KWARGS)
    assert sealed["config"]["configurable"]["graph_id"] == sealed["config"]["metadata"]["graph_id"] == "agent"
    assert sealed["langsmith_tracer"] == {"project_name": "p"}
    assert sealed_key({**sealed, "input": None}) == "tags"


async def test_searches_are_refused_by_the_name_of_the_key():
    with pytest.raises(Invalid, match=r"body\.metadata\.title"):
        await vault(OLD).refuse_sealed({"graph_id": "a", "title": "x"}, METADATA, ["body", "metadata"])
    await vault(OLD, names="ssn").refuse_sealed({"title": "x"}, METADATA, ["body", "metadata"])


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"graph_aes_key": "short"}, "16, 24 or 32"),
        ({"graph_aes_json_keys": "ssn"}, "there is no key"),
        ({"graph_aes_key": OLD, "graph_aes_json_keys": "ssn,graph_id"}, "graph_id"),
    ],
)
def test_a_setting_that_cannot_be_honoured_stops_the_server(settings, reason):
    with pytest.raises(UserMistake, match=reason) as failure:
        make_vault(AgentSettings(**settings))
    assert "short" not in str(failure.value)


def test_without_settings_there_is_no_vault():
    assert make_vault(AgentSettings()) is None


def test_a_context_is_read_from_base64():
    assert read_header(base64.b64encode(b'{"tenant":"acme"}').decode()) == {"tenant": "acme"}
    assert read_header(None) == {}


async def test_handlers_that_lose_keys_or_fail_are_refused_without_their_words(sdk_encryption):
    encryption = sdk_encryption

    @encryption.encrypt.json
    async def encrypt(ctx, data):
        if ctx.metadata.get("fail"):
            raise RuntimeError("swordfish")
        return {"all": "of it"}

    with pytest.raises(UserMistake, match=r"decrypt\.json"):
        Handlers(encryption, "encryption.path")

    @encryption.decrypt.json
    async def decrypt(ctx, data):
        return data

    own = Vault(handlers=Handlers(encryption, "encryption.path"))
    set_context({})
    with pytest.raises(EncryptionFailed, match=r"must keep the keys of thread\.metadata"):
        await own.seal_document({"title": "x"}, METADATA)
    set_context({"fail": True})
    with pytest.raises(EncryptionFailed) as failure:
        await own.seal_document({"title": "x"}, METADATA)
    assert "swordfish" not in str(failure.value)
    with pytest.raises(UserMistake, match=r"must be a langgraph_sdk\.Encryption"):
        Handlers(object(), "encryption.path")


@pytest.fixture
def sdk_encryption():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Encryption()
