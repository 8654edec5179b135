import { describe, expect, test } from "vitest";
import { parseQuestion, questionText, resumeValue } from "./interrupts";

const MIDDLEWARE = {
  action_requests: [
    { name: "send", args: { to: "ada" }, description: "Send it?\nTo Ada" },
    { action: "remove", arguments: {} },
  ],
  review_configs: [{ action_name: "remove", allowed_decisions: ["reject"] }],
};
const INBOX = {
  action_request: { action: "send", args: { to: "ada" } },
  config: { allow_respond: true, allow_edit: true },
};

describe("a question", () => {
  test("of the middleware has an action for each request, with what is allowed for it", () => {
    const { form, actions } = parseQuestion(MIDDLEWARE);
    expect(form).toBe("decisions");
    expect(actions.map((action) => [action.name, action.allowed])).toEqual([
      ["send", ["reject"]],
      ["remove", ["reject"]],
    ]);
  });
  test("of the inbox may be one or a list", () => {
    expect(parseQuestion(INBOX)).toEqual(parseQuestion([INBOX]));
    expect(parseQuestion(INBOX).actions[0]?.allowed).toEqual(["edit", "respond"]);
  });
  test("of another form is answered freely", () => {
    expect(parseQuestion("Which one?")).toEqual({ form: "free", actions: [] });
    expect(parseQuestion([])).toEqual({ form: "free", actions: [] });
  });
});

test.each([
  ["Which one?", "Which one?"],
  [MIDDLEWARE, "Send it?"],
  [{ question: "Really?", other: 1 }, "Really?"],
])("%j asks in a line", (value, text) => expect(questionText(value)).toBe(text));

describe("answers", () => {
  test("to the middleware are decisions", () =>
    expect(
      resumeValue(parseQuestion(MIDDLEWARE), [
        { decision: "edit", args: { to: "bob" } },
        { decision: "reject", text: "no" },
      ]),
    ).toEqual({
      decisions: [
        { type: "edit", edited_action: { name: "send", args: { to: "bob" } } },
        { type: "reject", message: "no" },
      ],
    }));
  test("to the inbox are responses", () => {
    const question = parseQuestion([INBOX, INBOX, INBOX, INBOX]);
    const answers = [
      { decision: "approve" },
      { decision: "edit", args: { to: "bob" } },
      { decision: "respond", text: "later" },
      { decision: "ignore" },
    ] as const;
    expect(resumeValue(question, [...answers])).toEqual([
      { type: "accept", args: null },
      { type: "edit", args: { action: "send", args: { to: "bob" } } },
      { type: "response", args: "later" },
      { type: "ignore", args: null },
    ]);
  });
});
