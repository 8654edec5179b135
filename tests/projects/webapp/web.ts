// A Hono application beside the graphs: routes, middleware, streams, and pages of a front end.

import { createNodeWebSocket } from "@hono/node-ws";
import { getConnInfo } from "@hono/node-server/conninfo";
import { OpenAPIHono, createRoute, z } from "@hono/zod-openapi";
import { Client } from "@langchain/langgraph-sdk";
import { bodyLimit } from "hono/body-limit";
import { setCookie } from "hono/cookie";
import { HTTPException } from "hono/http-exception";
import { stream, streamSSE } from "hono/streaming";

type Auth = { user: { identity: string; is_authenticated: boolean }; scopes: string[] };
export const app = new OpenAPIHono<{ Variables: { auth?: Auth } }>();
const client = new Client();
const stopped: string[] = [];

app.use(async (c, next) => {
  if (c.req.header("x-turned") === "away") {
    return c.text("turned away", 418);
  }
  await next();
  c.header("x-web", "seen");
  c.header("x-user-in-middleware", c.get("auth")?.user.identity ?? "nobody");
});
// Reads what the server's own route is to read as well, and changes it in one of the ways that Hono has.
app.use("/threads", async (c, next) => {
  const body = await c.req.json().catch(() => ({}));
  const changed = { ...body, metadata: { changed: c.req.header("x-change") } };
  switch (c.req.header("x-change")) {
    case "request":
      c.req.raw = new Request(c.req.raw.url, { method: "POST", headers: c.req.raw.headers, body: JSON.stringify(changed) });
      break;
    case "text":
      c.req.bodyCache.text = Promise.resolve(JSON.stringify(changed));
      break;
    case "json":
      c.req.bodyCache.json = changed;
      break;
  }
  await next();
  c.header("x-read", Object.keys(body).join());
});
app.use("/threads/search", bodyLimit({ maxSize: 1000 }));

const Run = z.object({ laps: z.number() });
const laps = createRoute({
  method: "post",
  path: "/laps",
  request: { body: { content: { "application/json": { schema: Run } } } },
  responses: { 200: { description: "One more", content: { "application/json": { schema: Run } } } },
});
app.openapi(laps, (c) => c.json({ laps: c.req.valid("json").laps + 1 }));
app.get("/me", (c) => c.json({ identity: c.get("auth")?.user.identity ?? null, scopes: c.get("auth")?.scopes ?? null }));
app.get("/info", (c) => c.json({ mine: "instead of yours" }));
app.get("/boom", () => {
  throw new Error("the password is hunter2");
});
app.get("/rejected", (c) => {
  void Promise.reject(new Error("nobody caught the first word"));
  return new Promise(() => {});
});
app.get("/waiting/:for", (c) => {
  console.info(`began for /${c.req.param("for")}`);
  return new Promise(() => {});
});
app.get("/killed", () => process.kill(process.pid, "SIGKILL") as never);
app.get("/spinning", () => {
  for (;;) {}
});
app.get("/teapot", () => {
  throw new HTTPException(418, { message: "short and stout" });
});
app.get("/asked", async (c) => c.json(await client.runs.wait(null, "child", { input: { text: "from a route" } })));
app.get("/streamed", (c) =>
  streamSSE(c, async (out) => {
    for await (const { event } of client.runs.stream(null, "child", { input: { text: "s" }, streamMode: "values" })) {
      await out.writeSSE({ event, data: "x" });
    }
  }),
);
app.post("/size", async (c) => c.json({ size: (await c.req.arrayBuffer()).byteLength }));
app.get("/large", (c) =>
  stream(c, async (out) => {
    for (let part = 0; part < 64; part++) {
      await out.write(new Uint8Array(100_000).fill(part));
    }
  }),
);
app.get("/endless/:name", (c) =>
  stream(c, async (out) => {
    out.onAbort(() => void stopped.push(c.req.param("name")));
    for (let part = 0; !out.aborted; part++) {
      await out.write(`${part}\n`);
      await out.sleep(20);
    }
  }),
);
app.get("/stopped", (c) => c.json(stopped));
app.get("/cookies", (c) => {
  setCookie(c, "a", "1");
  setCookie(c, "b", "2");
  return c.text(`${getConnInfo(c).remote.address} ${c.req.url} ${c.req.query("q")}`);
});
app.get("/people/:name", (c) => c.text(c.req.path));
app.post("/called", async (c) => c.json(await c.req.json()));

export const { injectWebSocket, upgradeWebSocket } = createNodeWebSocket({ app });
app.get(
  "/talk",
  upgradeWebSocket((c) => ({
    onMessage(event, socket) {
      if (event.data === "bye") {
        socket.close(4001, "as you like");
      } else if (typeof event.data !== "string") {
        socket.send(new Uint8Array(event.data as ArrayBuffer).reverse());
      } else {
        socket.send(`${c.get("auth")?.user.identity ?? "you"} said ${event.data}`);
      }
    },
  })),
);

/** The front end, whatever its path. */
app.get("*", (c) => c.text(`page ${c.req.path}`));

/** Embed texts by how many letters of each kind they have. */
export function embed(texts: string[]): number[][] {
  if (texts.some((text) => text.includes("fail"))) {
    throw new Error("no words for it");
  }
  return texts.map((text) => ["a", "b"].map((letter) => text.split(letter).length - 1));
}
