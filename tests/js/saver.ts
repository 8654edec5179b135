// The checkpointer of the executor, connected to a server at the socket PORTSIDE_SOCKET, for the validation suite of
// LangGraph's checkpointers. `tests/db/test_javascript_saver.py` bundles this.
import { connect } from "node:net";
import { validate } from "@langchain/langgraph-checkpoint-validation";
import { importLibraries } from "../../executor-js/src/libraries.js";
import { Link } from "../../executor-js/src/link.js";
import { makeSaver } from "../../executor-js/src/saver.js";
import { Server } from "../../executor-js/src/server.js";

const { PORTSIDE_SOCKET: socket = "", PORTSIDE_PROJECT: project = "" } = process.env;
const link = new Link(connect(socket), { handlers: new Map(), onHello: () => {}, pong: () => null });
const saver = makeSaver(await importLibraries(`${project}/package.json`), new Server(link, false));

validate({
  checkpointerName: "the server's",
  createCheckpointer: () => saver,
  destroyCheckpointer: async () => {
    const threads = new Set<string>();
    for await (const { config } of saver.list({ configurable: {} })) {
      threads.add(config.configurable?.thread_id);
    }
    for (const thread of threads) {
      await saver.deleteThread(thread);
    }
  },
});
