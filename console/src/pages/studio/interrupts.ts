// The questions of agents to people, in the forms that clients know: requests for actions, which are approved, edited,
// rejected or answered, and anything else, which is answered with a text or JSON.

import { isBranch, summarize } from "../../ui/Json";

export type Decision = "approve" | "edit" | "reject" | "respond" | "ignore";

export interface ActionRequest {
  name: string;
  args: unknown;
  description: string;
  allowed: Decision[];
}

export interface Answer {
  decision: Decision;
  // New arguments of an edit; a text of a rejection or response.
  args?: unknown;
  text?: string;
}

// How the answers to a question's actions are written: `decisions` of the middleware, or one response for each request.
type Form = "decisions" | "responses" | "free";

export interface Question {
  form: Form;
  actions: ActionRequest[];
}

const ALL: Decision[] = ["approve", "edit", "reject"];

/** Read the value of an interrupt. */
export function parseQuestion(value: unknown): Question {
  if (isBranch(value) && "action_requests" in value && Array.isArray(value.action_requests)) {
    const reviews = "review_configs" in value && Array.isArray(value.review_configs) ? value.review_configs : [];
    return {
      form: "decisions",
      actions: value.action_requests.map((each, index) => middlewareAction(each, reviews, index)),
    };
  }

  const requests = Array.isArray(value) ? value : [value];
  if (requests.length > 0 && requests.every((each) => isBranch(each) && "action_request" in each)) {
    return { form: "responses", actions: requests.map(inboxAction) };
  }

  return { form: "free", actions: [] };
}

/** What a question asks, in a line: its own words, else the action that it is about. */
export function questionText(value: unknown): string {
  if (typeof value === "string") return value;
  const [action] = parseQuestion(value).actions;
  if (action) return action.description.split("\n", 1)[0] || `${action.name} ${summarize(action.args)}`;
  const names = isBranch(value) ? ["question", "message", "text", "description", "title"] : [];
  const own = names.map((key) => (value as Record<string, unknown>)[key]).find((each) => typeof each === "string");

  return typeof own === "string" ? own : summarize(value);
}

function middlewareAction(
  request: Record<string, unknown>,
  reviews: Record<string, unknown>[],
  index: number,
): ActionRequest {
  const name = String(request.name ?? request.action ?? "action");
  const review = reviews.find((each) => each.action_name === name) ?? reviews[index];
  const allowed = Array.isArray(review?.allowed_decisions) ? (review.allowed_decisions as Decision[]) : ALL;

  return {
    name,
    args: request.args ?? request.arguments ?? {},
    description: String(request.description ?? ""),
    allowed,
  };
}

function inboxAction(request: Record<string, unknown>): ActionRequest {
  const action = request.action_request as Record<string, unknown>;
  const config = (request.config ?? {}) as Record<string, unknown>;
  const allowed: Decision[] = [];
  if (config.allow_accept) allowed.push("approve");
  if (config.allow_edit) allowed.push("edit");
  if (config.allow_respond) allowed.push("respond");
  if (config.allow_ignore) allowed.push("ignore");

  return {
    name: String(action.action ?? "action"),
    args: action.args ?? {},
    description: String(request.description ?? ""),
    allowed: allowed.length > 0 ? allowed : ["approve"],
  };
}

/** Write the answers to a question's actions as the agent expects them. */
export function resumeValue(question: Question, answers: Answer[]): unknown {
  if (question.form === "decisions") {
    return { decisions: answers.map((answer, index) => toDecision(answer, question.actions[index])) };
  }

  return answers.map((answer, index) => toResponse(answer, question.actions[index]));
}

function toDecision({ decision, args, text }: Answer, action: ActionRequest | undefined): unknown {
  if (decision === "edit") return { type: "edit", edited_action: { name: action?.name, args } };
  if (decision === "approve") return { type: "approve" };
  return { type: decision, ...(text ? { message: text } : {}) };
}

function toResponse({ decision, args, text }: Answer, action: ActionRequest | undefined): unknown {
  if (decision === "approve") return { type: "accept", args: null };
  if (decision === "edit") return { type: "edit", args: { action: action?.name, args } };
  if (decision === "respond") return { type: "response", args: text ?? "" };
  return { type: "ignore", args: null };
}
