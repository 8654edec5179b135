"""Reading the policy for webhooks from the configuration file."""

import base64
import binascii
import re
from collections.abc import Mapping
from typing import NamedTuple

from portside.agent.types.webhooks import PAYLOAD_FIELDS, WebhooksConfig
from portside.agent.webhooks.policy import InProcessRoutes, WebhookPolicy
from portside.kernel.errors import UserMistake

_TEMPLATE = re.compile(r"\$\{\{(.*?)\}\}")
_VARIABLE = re.compile(r"env\.([A-Za-z_][A-Za-z0-9_]*)")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e]*")
RESERVED_HEADERS = frozenset(
    {
        "host",
        "content-length",
        "content-type",
        "transfer-encoding",
        "connection",
        "webhook-id",
        "webhook-timestamp",
        "webhook-signature",
    }
)
_ENCODED = "whsec_"
MIN_SECRET_BYTES = 16


def read_policy(
    config: WebhooksConfig | None,
    environ: Mapping[str, str],
    *,
    is_disabled: bool,
    own_routes: InProcessRoutes | None = None,
) -> WebhookPolicy:
    """Return the policy of a configuration. Raises UserMistake that names the key.

    Without a `webhooks` section addresses may be http; with one they must be https, unless it allows http.
    """
    if config is None:
        return WebhookPolicy(is_disabled=is_disabled, own_routes=own_routes)

    variables = _Variables(prefix=config.env_prefix, environ=environ)
    texts = config.signing_secret or []
    if isinstance(texts, str):
        texts = [texts]

    key = "webhooks.signing_secret"
    secret_texts = [variables.fill_in(key, text) for text in texts]

    return WebhookPolicy(
        urls=config.url,
        headers={name: _read_header(name, value, variables) for name, value in config.headers.items()},
        secrets=[read_secret(text, key) for text in secret_texts],
        payload_fields=_read_payload_fields(config),
        is_disabled=is_disabled,
        own_routes=own_routes,
    )


def _read_header(name: str, value: str, variables: "_Variables") -> str:
    key = f"webhooks.headers.{name}"
    if not _TOKEN.fullmatch(name) or name.lower() in RESERVED_HEADERS:
        raise UserMistake(
            f"{key}: this is not the name of a header that may be set; correct or remove it. The server itself sets "
            + ", ".join(sorted(RESERVED_HEADERS))
        )

    text = variables.fill_in(key, value)
    if not _VALUE.fullmatch(text):
        raise UserMistake(f"{key}: the value must be printable ASCII characters in one line, as in every HTTP header")

    return text


class _Variables(NamedTuple):
    """The environment variables that values of the configuration may name: those with a prefix."""

    prefix: str
    environ: Mapping[str, str]

    def fill_in(self, key: str, text: str) -> str:
        """Fill in the variables that a value names. Raises UserMistake if one may not be named, or is not set."""
        return _TEMPLATE.sub(lambda template: self._get_value(key, template), text)

    def _get_value(self, key: str, template: re.Match[str]) -> str:
        variable = _VARIABLE.fullmatch(template[1].strip())
        if variable is None or not variable[1].startswith(self.prefix):
            example = f"${{{{ env.{self.prefix}NAME }}}}"
            raise UserMistake(f"{key}: {template[0]} must name an environment variable as {example}")
        if variable[1] not in self.environ:
            raise UserMistake(
                f"{key}: the environment variable {variable[1]} is not set; set it, or remove the reference"
            )

        return self.environ[variable[1]]


def _read_payload_fields(config: WebhooksConfig) -> frozenset[str]:
    all_fields = frozenset(PAYLOAD_FIELDS)
    payload = config.payload
    for key, names in (("include", payload.include), ("exclude", payload.exclude)):
        unknown = sorted(set(names or ()) - all_fields)
        if unknown:
            raise UserMistake(
                f"webhooks.payload.{key} names fields that the payload does not have: {', '.join(unknown)}; it has "
                f"{', '.join(PAYLOAD_FIELDS)}"
            )

    included = all_fields if payload.include is None else frozenset(payload.include)
    return included - frozenset(payload.exclude)


def read_secret(text: str, key: str) -> bytes:
    """Return the key of a secret: text, or `whsec_` and base64. Raises UserMistake if it is short or not base64."""
    encoded = text.removeprefix(_ENCODED)
    try:
        secret = text.encode() if encoded == text else base64.b64decode(encoded, validate=True)
    except binascii.Error as exc:
        raise UserMistake(f"{key}: the text after whsec_ is not base64") from exc

    if len(secret) < MIN_SECRET_BYTES:
        raise UserMistake(f"{key}: the secret is shorter than {MIN_SECRET_BYTES} bytes; use a longer one")

    return secret
