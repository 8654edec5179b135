"""The files of the Helm chart in `deploy/helm`, written from the objects and values of `portside manifests`.

`make generate` writes them. They use few words of Helm's language, so that a test can fill them in without Helm.
"""

from typing import Any

import msgspec

from portside import __version__
from portside.cli.manifest_templates import print_template
from portside.cli.manifest_values import Values, ValuesSection, Variable, build_schema
from portside.cli.manifests import build_templates

Json = dict[str, Any]
CHART = "deploy/helm/portside"
_WIDTH = 118
_NOTE = "Written by `make generate` from the code; edit the code."
_DESCRIPTION = "Portside, a platform that deploys and runs agents"
_NOTES = """\
Portside is installed in the namespace {{ $.Release.Namespace }}.

It starts once the Secret "{{ $.Values.platform.secretName }}" exists there, and the listener once
"{{ $.Values.listener.secretName }}" does; docs/guides/kubernetes.md says what they hold.
Volumes and namespaces of deployments stay when this release is removed.
"""


def build_chart() -> dict[str, str]:
    """Return the text of each file of the chart, by its path in the repository."""
    chart = {
        "apiVersion": "v2",
        "name": "portside",
        "description": _DESCRIPTION,
        "type": "application",
        "version": __version__,
        "appVersion": __version__,
        "kubeVersion": ">=1.30.0-0",
    }
    lines = [f"# {_NOTE}", *(f"{name}: {_dump(value)}" for name, value in chart.items())]
    files = {
        "Chart.yaml": "\n".join(lines) + "\n",
        "values.yaml": _build_values(),
        "values.schema.json": msgspec.json.format(msgspec.json.encode(_build_chart_schema())).decode() + "\n",
        "templates/NOTES.txt": _NOTES,
    }

    for name, documents in build_templates().items():
        files[f"templates/{name}.yaml"] = f"# {_NOTE}\n{print_template(documents)}"

    return {f"{CHART}/{path}": text for path, text in files.items()}


def build_values_page() -> str:
    """Return the page of the reference that lists all values."""
    lines = [
        "# Values of an installation on a cluster",
        "",
        "<!-- Written by `make generate` from the code; edit the code. -->",
        "",
        "A YAML file with these values is given to `portside manifests --values FILE`, or to Helm with the chart in",
        "[deploy/helm](../../deploy/helm/portside). `portside manifests --schema` prints their JSON schema.",
        "",
        "| value | default | meaning |",
        "|---|---|---|",
    ]

    for path, default, description in _list_values(Values, Values(), ""):
        lines.append(f"| `{path}` | `{_dump(default)}` | {description.replace('|', '&#124;')} |")

    return "\n".join(lines) + "\n"


def _build_chart_schema() -> Json:
    """Return the schema of all values together with those of `values.yaml`.

    Helm takes null for "remove the default", so what is not nullable is required. It adds `global` to the values of a
    chart that another one depends on.
    """
    schema = build_schema()
    schema["definitions"] = {name: _require_values(part) for name, part in schema["definitions"].items()}
    properties = {**schema["properties"], "global": {"type": "object"}}
    return {**_require_values(schema), "properties": properties}


def _require_values(schema: Json) -> Json:
    if schema["title"] == Variable.__name__:
        return schema

    names = [name for name, value in schema["properties"].items() if {"type": "null"} not in value.get("anyOf", ())]
    return {**schema, "required": names}


def _build_values() -> str:
    lines = [f"# {_NOTE}"]
    section = ""
    for path, default, description in _list_values(Values, Values(), ""):
        parent, _, name = path.rpartition(".")
        if parent != section:
            lines += ["", f"{parent}:"]
            section = parent

        indent = "  " if parent else ""
        lines += [f"{indent}# {line}" for line in _wrap(description)]
        lines.append(f"{indent}{name}: {_dump(default)}")

    return "\n".join(lines) + "\n"


def _list_values(kind: type[ValuesSection], defaults: Any, prefix: str) -> list[tuple[str, Any, str]]:
    """Return the path, the default and the description of each value; those of sections after the others."""
    plain: list[tuple[str, Any, str]] = []
    nested: list[tuple[str, Any, str]] = []
    properties = msgspec.json.schema_components([kind])[1][kind.__name__]["properties"]
    for field in msgspec.structs.fields(kind):
        value = getattr(defaults, field.name)
        path = f"{prefix}{field.encode_name}"
        if isinstance(value, ValuesSection):
            nested += _list_values(type(value), value, f"{path}.")
        else:
            plain.append((path, msgspec.to_builtins(value), properties[field.encode_name]["description"]))

    return [*plain, *nested]


def _wrap(text: str) -> list[str]:
    import textwrap

    return textwrap.wrap(text, _WIDTH - 4)


def _dump(value: Any) -> str:
    return msgspec.json.encode(value).decode()
