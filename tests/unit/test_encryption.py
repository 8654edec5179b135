"""AES keys, envelopes and contexts: ciphertext decrypts with every configured key, and with no other."""

import base64
import json
import warnings
from types import SimpleNamespace

import pytest
from langgraph_sdk import Encryption
from starlette.authentication import UnauthenticatedUser

from portside.agent.encryption.ciphers import AesKeys, ModelField
from portside.agent.encryption.codec import EncryptionCodec, with_encryption_context
from portside.agent.encryption.context import LIMIT_BYTES, current_context, in_context, read_header, set_context
from portside.agent.encryption.encryptor import Encryptor, build_encryptor, decrypt_document, find_encrypted_key
from portside.agent.encryption.envelopes import unwrap_blob
from portside.agent.encryption.locations import Location
from portside.agent.settings import AgentSettings
from portside.agent.sql.declarations import Declarations
from portside.agent.types.access import Caller
from portside.executor.encryption_handlers import CannotDecrypt, Decrypted, EncryptionFailed, EncryptionHandlers
from portside.kernel.errors import Invalid, UserMistake

OLD = "o" * 32
NEW = "n" * 16
KWARGS = ModelField("run", "kwargs")
METADATA = ModelField("thread", "metadata")
ROW = ("thread", "t1")
LOCATION = Location(ROW, "metadata")
BOUND = b"where the blob is"
AWKWARD = [
    {"a": {"__sealed__": 1}},
    {"__sealed__": {"aes": "x", "of": "y"}},
    {"a": [{"__sealed__": {"plain": 2}}]},
    {"__sealed__": {"__sealed__": {"plain": None}}},
    {"a": None, "": "", "b": [1, {"c": True}]},
    {},
    [],
    "text",
    5,
]


def encryptor(*keys: str, names: str = "*") -> Encryptor:
    made = build_encryptor(AgentSettings(graph_aes_key=",".join(keys), graph_aes_json_keys=names))
    assert made is not None
    return made


async def test_new_key_encrypts_and_old_key_still_decrypts():
    encrypted = await encryptor(OLD).encrypt_document({"title": "swordfish"}, METADATA, ROW)
    blob = await encryptor(OLD).encrypt_blob(b"swordfish", KWARGS, BOUND)
    assert b"swordfish" not in blob
    rotated = encryptor(NEW, OLD)
    assert (await decrypt_document(rotated, encrypted, LOCATION))[0] == {"title": "swordfish"}
    assert (await rotated.decrypt_blob(blob, KWARGS, BOUND))[0] == b"swordfish"
    encrypted_again = await rotated.encrypt_document({"title": "swordfish"}, METADATA, ROW)
    assert (await decrypt_document(encryptor(NEW), encrypted_again, LOCATION))[0] == {"title": "swordfish"}


async def test_missing_key_is_named_in_the_error():
    encrypted = await encryptor(OLD).encrypt_document({"title": "swordfish"}, METADATA, ROW)
    blob = await encryptor(OLD).encrypt_blob(b"swordfish", KWARGS, BOUND)

    missing = AesKeys(OLD.encode()).encrypt(b"", b"")[1:5].hex()
    with pytest.raises(CannotDecrypt, match=missing):
        await decrypt_document(encryptor(NEW), encrypted, LOCATION)

    with pytest.raises(CannotDecrypt, match=missing):
        await encryptor(NEW).decrypt_blob(blob, KWARGS, BOUND)

    with pytest.raises(CannotDecrypt, match="set GRAPH_AES_KEY"):
        await Encryptor().decrypt_blob(blob, KWARGS, BOUND)


async def test_changed_or_moved_value_does_not_decrypt():
    own = encryptor(OLD)
    envelope = (await own.encrypt_document({"title": "swordfish"}, METADATA, ROW))["title"]
    changed = envelope["__sealed__"]["aes"][:-8] + "AAAAAAA="

    elsewhere = [
        ({"title": {"__sealed__": {"v": 2, "aes": changed}}}, LOCATION),
        ({"name": envelope}, LOCATION),
        ({"deep": {"title": envelope}}, LOCATION),
        ([envelope], LOCATION),
        (envelope, LOCATION),
        ({"title": envelope}, Location(ROW, "config")),
        ({"title": envelope}, Location(("thread", "t2"), "metadata")),
        ({"title": envelope}, Location(("assistant", "t1"), "metadata")),
    ]

    for stored, spot in elsewhere:
        with pytest.raises(CannotDecrypt, match="moved to another field or row"):
            await decrypt_document(own, stored, spot)


async def test_moved_blob_does_not_decrypt():
    own = encryptor(OLD)
    blob = await own.encrypt_blob(b"swordfish", KWARGS, BOUND)
    with pytest.raises(CannotDecrypt, match="moved"):
        await own.decrypt_blob(blob, KWARGS, b"another row")

    with pytest.raises(CannotDecrypt, match="moved"):
        await own.decrypt_blob(blob, METADATA, BOUND)


FORGED = [
    1,
    None,
    "text",
    [],
    {},
    {"aes": 1},
    {"aes": "AAAA", "of": "title"},
    {"plain": 1},
    {"value": "x", "of": "y"},
    {"v": 2, "aes": "AAAA"},
    {"v": 2, "aes": ["x"]},
    {"v": 3, "aes": "AAAA"},
    {"__sealed__": 1},
    {"v": 2, "value": "x", "of": 7},
    {"v": 2, "value": "x", "of": "thread.metadata", "context": 1},
]


@pytest.mark.parametrize("forged", FORGED)
async def test_envelope_lookalike_from_before_encryption_is_data(forged):
    own = encryptor(OLD)
    own.accepts_unbound = False

    value = {"__sealed__": forged}
    for stored in (value, {"a": value}, {"a": [value]}, [value], {"a": {"b": [{"c": value}]}}):
        assert (await decrypt_document(own, stored, LOCATION))[0] == stored


def old_envelope(value, key):
    encrypted = AesKeys(OLD.encode()).encrypt(json.dumps(value).encode(), key.encode())
    return {"__sealed__": {"aes": base64.b64encode(encrypted).decode(), "of": key}}


async def test_unbound_envelopes_decrypt_and_are_bound_when_rewritten():
    own = encryptor(OLD)
    stored = {"title": old_envelope("swordfish", "title"), "odd": {"__sealed__": {"plain": 5}}}
    assert (await decrypt_document(own, stored, LOCATION))[0] == {"title": "swordfish", "odd": {"__sealed__": 5}}
    assert (await decrypt_document(own, old_envelope([1], "value"), LOCATION))[0] == [1]

    with pytest.raises(CannotDecrypt, match="was moved"):
        await decrypt_document(own, {"name": stored["title"]}, LOCATION)

    again = await own.encrypt_document({"title": "swordfish"}, METADATA, ROW)
    assert again["title"]["__sealed__"].keys() == {"v", "aes"}
    own.accepts_unbound = False
    assert (await decrypt_document(own, stored, LOCATION))[0] == stored


@pytest.mark.parametrize("names", ["*", "title"])
async def test_client_documents_never_contain_an_envelope_key(names):
    own = encryptor(OLD, names=names)
    copied = (await own.encrypt_document({"title": "swordfish"}, METADATA, ROW))["title"]
    for forged in ({"__sealed__": 1}, copied, old_envelope("swordfish", "title")):
        for given in (
            forged,
            {"title": forged},
            {"a": forged},
            {"a": [forged]},
            {"graph_id": forged},
            {**forged, "b": 1},
            {"__sealed__~": forged, "__sealed__": forged},
            {"config": {"configurable": forged, **forged}},
            {"config": {"configurable": {"graph_id": forged}, "metadata": forged}},
        ):
            for place in (METADATA, KWARGS, ModelField("assistant", "config")):
                encrypted = await own.encrypt_document(given, place, ROW)
                assert "__sealed__" not in set(clear_keys(encrypted))
                row = ROW if place.model != "assistant" else ("thread", "t1")
                assert (await decrypt_document(own, encrypted, Location(row, place.field)))[0] == given


def clear_keys(value):
    """All keys of a stored document but those of envelopes that are bound."""
    if isinstance(value, list):
        for part in value:
            yield from clear_keys(part)
    elif isinstance(value, dict) and not (set(value) == {"__sealed__"} and value["__sealed__"].get("v") == 2):
        for key, part in value.items():
            yield key
            yield from clear_keys(part)


@pytest.mark.parametrize("names", ["*", "a,c"])
@pytest.mark.parametrize("value", AWKWARD)
async def test_any_document_round_trips(value, names):
    own = encryptor(OLD, names=names)
    assert (await decrypt_document(own, await own.encrypt_document(value, METADATA, ROW), LOCATION))[0] == value


async def test_named_keys_are_encrypted_at_any_depth():
    own = encryptor(OLD, names="ssn, token")
    given = {"people": [{"ssn": "123", "name": "Ada"}], "token": {"deep": 1}, "graph_id": "agent"}
    encrypted = await own.encrypt_document(given, METADATA, ROW)
    assert encrypted["people"][0]["name"] == "Ada"
    assert encrypted["graph_id"] == "agent"
    assert "123" not in str(encrypted)
    assert "deep" not in str(encrypted)

    assert (await decrypt_document(own, encrypted, LOCATION))[0] == given


async def test_kwargs_that_sql_reads_stay_clear():
    given = {
        "input": {"word": "swordfish"},
        "langsmith_tracer": {"project_name": "p"},
        "config": {"tags": ["t"], "configurable": {"graph_id": "agent"}, "metadata": {"graph_id": "agent"}},
    }

    encrypted = await encryptor(OLD).encrypt_document(given, KWARGS, ROW)
    assert encrypted["config"]["configurable"]["graph_id"] == encrypted["config"]["metadata"]["graph_id"] == "agent"
    assert encrypted["langsmith_tracer"] == {"project_name": "p"}
    assert find_encrypted_key({**encrypted, "input": None}) == "tags"


async def test_search_for_an_encrypted_key_is_refused_by_name():
    with pytest.raises(Invalid, match=r"body\.metadata\.title"):
        await encryptor(OLD).refuse_encrypted({"graph_id": "a", "title": "x"}, METADATA, ["body", "metadata"])
    await encryptor(OLD, names="ssn").refuse_encrypted({"title": "x"}, METADATA, ["body", "metadata"])


async def test_a_search_for_what_looks_like_an_envelope_finds_it_as_it_is_stored():
    label = {"__sealed__": "x"}
    codec = EncryptionCodec(encryptor(OLD, names="title"))
    query = SimpleNamespace(declared=Declarations(searched={"metadata": METADATA}))
    for condition in (label, json.dumps(label)):
        stored = (await codec.encode(query, {"metadata": condition}))["metadata"]
        assert (json.loads(stored) if isinstance(stored, str) else stored) == {"__sealed__~": "x"}

    assert await codec.encryptor.encrypt_document(label, METADATA, ROW) == {"__sealed__~": "x"}


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"graph_aes_key": "short"}, "16, 24 or 32"),
        ({"graph_aes_key": f"{OLD},short"}, "16, 24 or 32"),
        ({"graph_aes_json_keys": "ssn"}, "there is no key"),
        ({"graph_aes_key": OLD, "graph_aes_json_keys": "ssn,graph_id"}, "graph_id"),
    ],
)
def test_impossible_encryption_settings_stop_the_server(settings, reason):
    with pytest.raises(UserMistake, match=reason) as failure:
        build_encryptor(AgentSettings(**settings))
    assert "short" not in str(failure.value)


async def test_a_key_may_have_a_comma_in_it():
    key = "a" * 7 + "," + "b" * 8
    encrypted = await encryptor(key).encrypt_document({"title": "swordfish"}, METADATA, ROW)
    assert (await decrypt_document(encryptor(key), encrypted, LOCATION))[0] == {"title": "swordfish"}


async def test_equal_values_have_different_ciphertexts():
    own = encryptor(OLD)
    documents = [await own.encrypt_document({"title": "swordfish"}, METADATA, ROW) for _ in range(2)]
    blobs = [await own.encrypt_blob(b"swordfish", KWARGS, BOUND) for _ in range(2)]
    assert documents[0] != documents[1]
    assert blobs[0] != blobs[1]


async def test_a_state_that_is_no_object_goes_by_the_name_value():
    values = ModelField("thread", "values")
    named = await encryptor(OLD, names="value").encrypt_document(["swordfish"], values, ROW)
    assert "swordfish" not in str(named)
    assert await encryptor(OLD, names="title").encrypt_document(["swordfish"], values, ROW) == ["swordfish"]


async def test_the_user_of_a_run_is_encrypted_although_the_server_set_it():
    user = {"identity": "ada", "email": "ada@example.test"}
    configurable = {"langgraph_auth_user": user, "langgraph_request_id": "r1"}
    encrypted = await encryptor(OLD).encrypt_document({"config": {"configurable": configurable}}, KWARGS, ROW)
    assert "ada" not in str(encrypted)
    assert encrypted["config"]["configurable"]["langgraph_request_id"] == "r1"


def test_without_settings_there_is_no_encryptor():
    assert build_encryptor(AgentSettings()) is None


def test_context_header_is_base64_json():
    assert read_header(base64.b64encode(b'{"tenant":"acme"}').decode()) == {"tenant": "acme"}
    assert read_header(None) == {}
    longest = base64.b64encode(json.dumps({"tenant": "x" * 3058}).encode()).decode()
    assert (len(longest), len(read_header(longest)["tenant"])) == (LIMIT_BYTES, 3058)
    with pytest.raises(Invalid, match="4096 characters or less"):
        read_header(base64.b64encode(json.dumps({"tenant": "x" * 3059}).encode()).decode())

    for bad in (b"[1]", b"{", b'{"a":"\\u0000"}', b'{"a":' + b"[" * 1500 + b"]" * 1500 + b"}"):
        with pytest.raises(Invalid, match="X-Encryption-Context"):
            read_header(base64.b64encode(bad).decode())


async def test_handler_failures_do_not_repeat_plain_text(sdk_encryption):
    encryption = sdk_encryption

    @encryption.encrypt.json
    async def encrypt(ctx, data):
        if ctx.metadata.get("fail"):
            raise RuntimeError("swordfish")
        if ctx.metadata.get("list"):
            return ["swordfish"]
        return {**data, "more": "of it"} if ctx.metadata.get("more") else {}

    with pytest.raises(UserMistake, match=r"decrypt\.json"):
        EncryptionHandlers(encryption, "encryption.path")

    @encryption.decrypt.json
    async def decrypt(ctx, data):
        return data

    own = Encryptor(handlers=EncryptionHandlers(encryption, "encryption.path"))
    for context, changed in (({}, "title"), ({"more": True}, "more")):
        set_context(context)
        kept = rf"must keep the keys of thread\.metadata; it added or removed {changed}$"
        with pytest.raises(EncryptionFailed, match=kept):
            await own.encrypt_document({"title": "x"}, METADATA, ROW)

    set_context({"fail": True})
    with pytest.raises(EncryptionFailed) as failure:
        await own.encrypt_document({"title": "x"}, METADATA, ROW)

    assert "swordfish" not in str(failure.value)
    set_context({"list": True})
    with pytest.raises(EncryptionFailed, match=r"^encrypt\.json returned a list; it must return a dict$"):
        await own.encrypt_document({"title": "x"}, METADATA, ROW)

    with pytest.raises(UserMistake, match=r"must be a langgraph_sdk\.Encryption"):
        EncryptionHandlers(object(), "encryption.path")


class OwnCipher:
    """Handlers whose ciphertext is the value in a list, and a blob backwards."""

    does_json = does_blobs = True

    async def encrypt_json(self, target, metadata, plain):
        return {key: [value] for key, value in plain.items()}

    async def decrypt_json(self, target, metadata, stored):
        return Decrypted({key: value[0] for key, value in stored.items()})

    async def encrypt_blob(self, target, metadata, plain):
        return plain[::-1]

    async def decrypt_blob(self, target, metadata, stored):
        return Decrypted(stored[::-1])


async def test_what_a_handler_encrypted_does_not_decrypt_elsewhere():
    own = Encryptor(handlers=OwnCipher())
    set_context({})
    encrypted = await own.encrypt_document({"title": "swordfish"}, METADATA, ROW)
    assert (await decrypt_document(own, encrypted, LOCATION))[0] == {"title": "swordfish"}
    for spot in (Location(ROW, "values"), Location(("cron", "c1"), "metadata"), Location(("item", "n", "k"), "value")):
        with pytest.raises(CannotDecrypt, match=r"encrypted as thread\.metadata: it was moved"):
            await decrypt_document(own, encrypted, spot)

    blob = await own.encrypt_blob(b"swordfish", KWARGS, BOUND)
    assert (await own.decrypt_blob(blob, KWARGS, BOUND))[0] == b"swordfish"
    with pytest.raises(CannotDecrypt, match="encrypted for another row"):
        await own.decrypt_blob(blob, KWARGS, b"another row")


async def test_values_of_an_older_key_stay_beside_handlers_and_are_renewed_without():
    encrypted = await encryptor(OLD).encrypt_document({"title": "swordfish"}, METADATA, ROW)
    blob = await encryptor(OLD).encrypt_blob(b"swordfish", KWARGS, BOUND)
    keys = AesKeys(NEW.encode(), OLD.encode())

    beside = Encryptor(keys=keys, handlers=OwnCipher())
    assert await decrypt_document(beside, encrypted, LOCATION) == ({"title": "swordfish"}, [])
    assert await beside.decrypt_blob(blob, KWARGS, BOUND) == (b"swordfish", None)

    alone = Encryptor(keys=keys, json_keys=frozenset({"*"}))
    _, [replacement] = await decrypt_document(alone, encrypted, LOCATION)
    assert (replacement.path, replacement.old) == (("title",), encrypted["title"])
    renewed = {"title": replacement.new}
    assert await decrypt_document(encryptor(NEW), renewed, LOCATION) == ({"title": "swordfish"}, [])

    _, new_blob = await alone.decrypt_blob(blob, KWARGS, BOUND)
    assert await encryptor(NEW).decrypt_blob(new_blob, KWARGS, BOUND) == (b"swordfish", None)


async def test_a_copied_blob_keeps_its_context():
    own = Encryptor(handlers=OwnCipher())
    with in_context({"tenant": "acme"}):
        blob = await own.encrypt_blob(b"swordfish", KWARGS, BOUND)

    with in_context({"tenant": "another"}):
        copied = await own.rebind_blob(blob, KWARGS, BOUND, b"the copy")

    assert unwrap_blob(copied).head.context == unwrap_blob(blob).head.context == {"tenant": "acme"}
    assert (await own.decrypt_blob(copied, KWARGS, b"the copy"))[0] == b"swordfish"


async def test_the_context_of_a_request_is_derived_from_its_user_and_header():
    asked = []

    class Deriving(OwnCipher):
        async def derive_context(self, user, metadata):
            asked.append((user, metadata))
            return {**metadata, "of": "ada"}

    async def find_caller(_ctx, _route):
        return Caller("ada", user={"identity": "ada"})

    async def find_nobody(_ctx, _route):
        return None

    own = Encryptor(handlers=Deriving())
    header = base64.b64encode(b'{"tenant":"acme"}')
    ctx = SimpleNamespace(scope={"headers": [(b"x-encryption-context", header)]})
    await with_encryption_context(find_caller, own)(ctx, None)
    assert (asked, current_context()) == ([({"identity": "ada"}, {"tenant": "acme"})], {"tenant": "acme", "of": "ada"})

    await with_encryption_context(find_nobody, own)(SimpleNamespace(scope={"headers": []}), None)
    assert isinstance(asked[1][0], UnauthenticatedUser)
    assert (asked[1][1], current_context()) == ({}, {"of": "ada"})
    with pytest.raises(Invalid, match="no encryption handlers"):
        await with_encryption_context(find_caller, encryptor(OLD))(ctx, None)


def test_handlers_and_named_keys_do_not_both_encrypt_documents():
    settings = AgentSettings(graph_aes_key=OLD, graph_aes_json_keys="title")
    with pytest.raises(UserMistake, match="would both encrypt documents"):
        build_encryptor(settings, OwnCipher())
    assert build_encryptor(AgentSettings(graph_aes_key=OLD), OwnCipher()) is not None


@pytest.fixture
def sdk_encryption():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Encryption()
