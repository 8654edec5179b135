// What waits for the socket of a link: it comes whole and in its order, and a graph that emits much is held up.
// `tests/db/test_javascript_parts.py` bundles this; it fails if a test does.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { once } from "node:events";
import { mkdtempSync } from "node:fs";
import { connect, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { setImmediate } from "node:timers/promises";
import { Worker } from "node:worker_threads";
import { Outgoing } from "../../executor-js/src/outgoing.js";

const MB = 1_000_000;
const folder = mkdtempSync(join(tmpdir(), "outgoing-"));

/** The server, in a thread of its own: it reads to the end, or leaves after some bytes, and says what it has read. */
const READER = `
  const { createHash } = require("node:crypto");
  const { createServer } = require("node:net");
  const { parentPort, workerData } = require("node:worker_threads");

  const server = createServer((socket) => {
    const hash = createHash("sha256");
    let bytes = 0;

    socket.on("data", (data) => {
      hash.update(data);
      bytes += data.length;
      if (bytes > workerData.leavesAfter) {
        socket.destroy();
      }
    });
    socket.on("close", () => {
      server.close();
      parentPort.postMessage({ bytes, digest: hash.digest("hex") });
    });
  });
  server.listen(workerData.path, () => parentPort.postMessage("listening"));
`;

async function connectTo(leavesAfter: number): Promise<{ reader: Worker; socket: Socket }> {
  const path = join(folder, `socket-${leavesAfter}`);
  const reader = new Worker(READER, { eval: true, workerData: { path, leavesAfter } });
  await once(reader, "message");

  const socket = connect(path);
  await once(socket, "connect");
  return { reader, socket };
}

test("a graph that emits without end has little waiting, and all of it arrives in its order", async () => {
  const { reader, socket } = await connectTo(Number.POSITIVE_INFINITY);
  const outgoing = new Outgoing(socket);
  const hash = createHash("sha256");
  let most = 0;

  for (let number = 0; number < 200; number++) {
    for (const frame of [Buffer.alloc(MB, number), Buffer.from(`after ${number}`)]) {
      hash.update(frame);
      outgoing.add(frame);
    }

    outgoing.flush();
    most = Math.max(most, outgoing.waitingBytes);
    await setImmediate();
  }

  const read = once(reader, "message");
  outgoing.end();
  const [{ digest }] = await read;
  assert.equal(digest, hash.digest("hex"));
  assert.ok(most < 120 * MB, `${most} bytes waited`);
});

test("a server that leaves while the thread sends ends the connection and nothing else", async () => {
  const { reader, socket } = await connectTo(MB);
  const outgoing = new Outgoing(socket);
  const failed = once(socket, "error");
  const left = once(reader, "message");

  for (let number = 0; number < 60; number++) {
    outgoing.add(Buffer.alloc(MB, number));
    outgoing.flush();
    await setImmediate();
  }

  await left;
  const [error] = await failed;
  assert.match(error.code, /EPIPE|ECONNRESET/);
  assert.ok(socket.destroyed);
});
