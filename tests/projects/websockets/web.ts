// A WebSocket by the adapter of Hono for Node, which upgrades by itself since its second version.

import { upgradeWebSocket } from "@hono/node-server";
import { Hono } from "hono";

export default new Hono()
  .get(
    "/talk",
    upgradeWebSocket((c) => ({
      onMessage: (event, socket) => socket.send(`${c.req.query("name") ?? "you"} said ${event.data}`),
    })),
  )
  .notFound((c) => c.text("nobody asks for this"));
