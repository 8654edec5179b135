import { describe, expect, test } from "vitest";
import { ApiError } from "../../api/client";
import type { Integration } from "../../api/platform";
import { getFieldErrors, getSecretErrors, isShownAtFields, START, toBody } from "./draft";

function refuse(status: number, message: string, ...locs: (string | number)[][]) {
  return new ApiError(
    status,
    message,
    locs.map((loc) => ({ loc: ["body", ...loc], msg: "is wrong", type: "value_error" })),
    null,
  );
}

describe("the request of a deployment", () => {
  test("has the first account unless another one is chosen, and null for what is empty", () => {
    const draft = { ...START, name: " agent ", repo_url: "https://git.example.com/a" };
    expect(toBody(draft, [{ id: "account" } as Integration])).toEqual({
      name: "agent",
      source: "git_hosting",
      source_config: {
        repo_url: "https://git.example.com/a",
        integration_id: "account",
        deployment_type: "dev",
        build_on_push: false,
      },
      source_revision_config: { repo_ref: null, graph_config_path: "langgraph.json" },
      secrets: [],
    });
  });
  test("of an image has its replicas, and secrets that have a name or a value", () => {
    const secrets = [
      { key: 1, name: " A ", value: "1" },
      { key: 2, name: "", value: "" },
    ];
    const draft = { ...START, source: "external_image" as const, image_uri: "a:1", min_scale: "2", secrets };
    expect(toBody(draft, [])).toMatchObject({
      source_config: { resource_spec: { min_scale: 2, max_scale: null } },
      source_revision_config: { image_uri: "a:1" },
      secrets: [{ name: "A", value: "1" }],
    });
  });
});

describe("an error of a deployment", () => {
  test("is at the field that it names", () => {
    const error = refuse(422, "", ["source_config", "repo_url"]);
    expect(getFieldErrors(error)).toEqual({ "source_config.repo_url": "is wrong" });
    expect(isShownAtFields(error)).toBe(true);
  });
  test("is at the name if that is taken", () =>
    expect(getFieldErrors(refuse(409, "It exists."))).toEqual({ name: "It exists." }));
  test("of a combination is at the fields that its text names", () =>
    expect(getFieldErrors(refuse(400, "image_uri and repo_url exclude each other"))).toMatchObject({
      "source_config.repo_url": "image_uri and repo_url exclude each other",
      "source_revision_config.image_uri": "image_uri and repo_url exclude each other",
    }));
  test("is at the secret that it names", () =>
    expect(getSecretErrors(refuse(422, "", ["secrets", 1, "name"]))).toEqual({ 1: "is wrong" }));
  test("is shown as a whole if the form has no such field", () => {
    expect(isShownAtFields(refuse(422, "", ["source"]))).toBe(false);
    expect(isShownAtFields(refuse(500, "It failed."))).toBe(false);
  });
});
