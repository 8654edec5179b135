// What auth.py does, in TypeScript: tokens are names; everybody sees what is theirs, and what they were let into.

import { strict as assert } from "node:assert";
import { Auth, HTTPException } from "@langchain/langgraph-sdk/auth";

export const auth = new Auth()
  .authenticate(async (request: Request) => {
    const token = (request.headers.get("authorization") ?? "").replace("Bearer ", "");
    if (!token) {
      throw new HTTPException(401, { message: "Who are you?", headers: { "WWW-Authenticate": "Bearer" } });
    }
    assert(token !== "unwanted", "a word of the inside");
    switch (token) {
      case "banned":
        throw new HTTPException(403, { message: "Not you." });
      case "crash":
        throw new Error("a word of the inside");
      case "nobody":
        return { name: "without an identity" } as never;
      case "nothing":
        return null as never;
      case "endless":
        return new Promise<string>(() => {});
      case "late":
        setTimeout(() => {
          throw new Error("a word of a timer");
        });
        return new Promise<string>(() => {});
      case "echo": {
        const path = new URL(request.url).pathname;
        const thread = `{'thread_id': '${path.split("/")[2]}'}`;
        throw new HTTPException(401, {
          message: `${request.method} ${path} ${thread} ${request.headers.get("x-note")}`,
        });
      }
      case "reader of bodies":
        throw new HTTPException(402, { message: `${Object.keys(await request.json())}` });
      case "operator":
        return { identity: "operator", permissions: ["deployments:update"] };
      case "carol":
        return { identity: "carol", email: "carol@example.test", permissions: [] };
      default:
        return { identity: token, email: `${token}@example.test`, permissions: [`be:${token}`] };
    }
  })
  .on("*", unlessWithout(({ user, value }): any => {
    const { identity } = user;
    if (identity === "nosy") {
      return { $or: "everything" };
    }
    // JSON would leave these out, and nothing of the filter would be left.
    if (identity === "vague") {
      return { owner: (user as { nickname?: string }).nickname };
    }
    if (identity === "collector") {
      return new Map([["owner", "collector"]]);
    }
    const wanted = filterInToken(identity);
    if (wanted) {
      return wanted;
    }
    const changed = value as { metadata?: Record<string, unknown> };
    changed.metadata ??= {};
    changed.metadata.owner = identity;
    return { $or: [{ owner: identity }, { members: { $contains: identity } }] };
  }))
  .on("threads:search", unlessWithout(({ user: { identity } }): any => ({
    $or: [{ owner: identity }, { members: { $contains: [identity] } }],
  })))
  .on(
    ["crons:search", "assistants:search"],
    unlessWithout(({ user }) => filterInToken(user.identity) || { owner: user.identity }),
  )
  .on(
    "threads:delete",
    unlessWithout(({ user: { identity } }) => (identity === "reader" ? false : { owner: { $eq: identity } })),
  )
  .on("threads:update", unlessWithout(({ user: { identity } }) => {
    if (identity === "reader") {
      throw new HTTPException(403, { message: "Readers read." });
    }
    return { owner: identity };
  }))
  .on("store", unlessWithout(({ user, value }) => {
    assert(Array.isArray(value.namespace));
    const wanted = filterInToken(user.identity);
    if (wanted) {
      return wanted;
    }
    value.namespace = [user.identity, ...value.namespace];
  }));

/** Let a token such as `without threads.read` do everything but that action; others ask the handler. */
function unlessWithout(handler: (question: any) => any) {
  return (question: any): any => {
    const { identity } = question.user;
    if (!identity.startsWith("without ")) {
      return handler(question);
    }
    const event = `${question.resource}.${question.action}`;
    if (identity === `without ${event}`) {
      throw new HTTPException(403, { message: `Without ${event}.` });
    }
    return true;
  };
}

/** Return the filter that the token itself is, so that tests can try any. */
function filterInToken(identity: string) {
  return identity.startsWith("{") ? JSON.parse(identity) : null;
}
