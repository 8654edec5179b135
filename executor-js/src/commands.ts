// Commands of clients, as LangGraph takes them.

import type { Libraries } from "./libraries.js";
import { CallFailed } from "./link.js";
import type { Fields } from "./server.js";

type Location = (string | number)[];

/** The error for one field of a request. */
export function invalid(loc: Location, msg: string, type = "value_error"): CallFailed {
  return new CallFailed("invalid", `${loc.join(".")}: ${msg}`, { problems: [{ loc, msg, type }] });
}

/** Convert a client's command to LangGraph's. Throws CallFailed that names the field. */
export function parseCommand(libraries: Libraries, raw: Fields, loc: Location = ["body", "command"]): unknown {
  const { goto = null, update = null, resume = null } = raw;
  if (goto === null && update === null && resume === null) {
    throw invalid(loc, "Give at least one of resume, update and goto", "missing");
  }

  const { Command, Send } = libraries.graph;

  const target = (given: unknown, ...at: Location): unknown => {
    if (typeof given === "string") {
      return given;
    }

    const { node, input } = (given ?? {}) as Fields;
    if (typeof given !== "object" || given === null) {
      throw invalid([...loc, ...at], "Expected a node name or {node, input}", "type_error");
    }
    if (typeof node !== "string") {
      throw invalid([...loc, ...at, "node"], "Field required", "missing");
    }

    if (!("input" in given)) {
      throw invalid([...loc, ...at, "input"], "Field required", "missing");
    }

    return new Send(node, input);
  };

  const parts: Fields = {};
  if (goto !== null) {
    parts.goto = Array.isArray(goto) ? targets(goto, target, loc) : target(goto, "goto");
  }

  if (update !== null) {
    parts.update = checkedUpdate(update, loc);
  }

  if (resume !== null) {
    parts.resume = resume;
  }

  return new Command(parts as ConstructorParameters<typeof Command>[0]);
}

function targets(goto: unknown[], target: (given: unknown, ...at: Location) => unknown, loc: Location): unknown[] {
  if (new Set(goto.map((each) => typeof each)).size > 1) {
    throw invalid([...loc, "goto"], "A list must hold node names only, or {node, input} objects only");
  }

  return goto.map((each, index) => target(each, "goto", index));
}

/** Return an object, or a list of `[channel, value]` pairs. */
function checkedUpdate(update: unknown, loc: Location): unknown {
  if (!Array.isArray(update)) {
    if (typeof update !== "object") {
      throw invalid([...loc, "update"], "Expected an object or a list of [key, value] pairs", "type_error");
    }

    return update;
  }

  update.forEach((pair, index) => {
    if (!Array.isArray(pair) || pair.length !== 2 || typeof pair[0] !== "string") {
      throw invalid([...loc, "update", index], "Expected a [key, value] pair", "type_error");
    }
  });

  return update;
}
