// Reads the schemas of a graph from the types of its source, in a thread of its own: that takes seconds.

import { parentPort, workerData } from "node:worker_threads";
import { getStaticGraphSchema } from "@langchain/langgraph-api/schema";

// The parser prints what the compiler says of the project.
process.stdout.write = () => true;
parentPort?.postMessage(await getStaticGraphSchema(workerData, { mainThread: true }));
