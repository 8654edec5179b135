// A deployment that is not made yet: what the form has, the request of it, and where its errors belong.

import { type ApiError, getField } from "../../api/client";
import type { DeploymentCreate, Integration } from "../../api/platform";
import { parseNumber } from "../../ui/format";
import { type SecretDraft, toSecrets } from "../../ui/Secrets";

export interface DeploymentDraft {
  source: "git_hosting" | "external_image";
  name: string;
  repo_url: string;
  repo_ref: string;
  graph_config_path: string;
  integration_id: string;
  deployment_type: "" | "dev" | "prod";
  build_on_push: boolean;
  image_uri: string;
  min_scale: string;
  max_scale: string;
  secrets: SecretDraft[];
}

export const START: DeploymentDraft = {
  source: "git_hosting",
  name: "",
  repo_url: "",
  repo_ref: "",
  graph_config_path: "langgraph.json",
  integration_id: "",
  deployment_type: "dev",
  build_on_push: false,
  image_uri: "",
  min_scale: "",
  max_scale: "",
  secrets: [],
};

// The fields of the form by the fields of the body that the API names.
const SHOWN = [
  "name",
  "source_config.repo_url",
  "source_config.integration_id",
  "source_config.deployment_type",
  "source_config.resource_spec.min_scale",
  "source_config.resource_spec.max_scale",
  "source_revision_config.repo_ref",
  "source_revision_config.graph_config_path",
  "source_revision_config.image_uri",
];

/** The request. Texts are sent as they are: the API validates, and its answer stands at the field. */
export function toBody(draft: DeploymentDraft, integrations: Integration[]): DeploymentCreate {
  const secrets = toSecrets(draft.secrets);
  if (draft.source === "external_image") {
    const spec = { min_scale: parseNumber(draft.min_scale), max_scale: parseNumber(draft.max_scale) };

    return {
      name: draft.name.trim(),
      source: "external_image",
      source_config: { resource_spec: spec },
      source_revision_config: { image_uri: draft.image_uri.trim() || null },
      secrets,
    };
  }

  return {
    name: draft.name.trim(),
    source: "git_hosting",
    source_config: {
      repo_url: draft.repo_url.trim() || null,
      integration_id: draft.integration_id || integrations[0]?.id || null,
      deployment_type: draft.deployment_type || null,
      build_on_push: draft.build_on_push,
    },
    source_revision_config: {
      repo_ref: draft.repo_ref.trim() || null,
      graph_config_path: draft.graph_config_path.trim() || null,
    },
    secrets,
  };
}

/** What the API says about each field, by its path in the body. */
export function getFieldErrors(error: ApiError | null): Record<string, string> {
  const errors: Record<string, string> = {};
  for (const problem of error?.problems ?? []) errors[getField(problem)] ??= problem.msg;
  if (error?.status === 409) errors.name = error.message;

  if (error?.status === 400) {
    // A refused combination names its fields in the text.
    for (const field of SHOWN) {
      const last = field.split(".").at(-1) ?? field;
      if (error.message.includes(last)) errors[field] ??= error.message;
    }
  }

  return errors;
}

/** What the API says about each secret, by its position. */
export function getSecretErrors(error: ApiError | null): Record<number, string> {
  const errors: Record<number, string> = {};
  for (const problem of error?.problems ?? []) {
    const position = problem.loc.indexOf("secrets");
    const index = problem.loc[position + 1];
    if (position >= 0 && typeof index === "number") errors[index] = problem.msg;
  }

  return errors;
}

/** Whether all that the API says is about fields of the form. */
export function isShownAtFields(error: ApiError): boolean {
  const fields = Object.keys(getFieldErrors(error));
  return fields.length > 0 && fields.every((field) => SHOWN.includes(field) || field.startsWith("secrets."));
}
