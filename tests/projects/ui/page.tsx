// A page that shows what a graph pushes, as an application for chats does.

import { Client } from "@langchain/langgraph-sdk";
import { useStream } from "@langchain/langgraph-sdk/react";
import { experimental_loadShare, LoadExternalComponent, type UIMessage } from "@langchain/langgraph-sdk/react-ui";
import { createRoot } from "react-dom/client";

experimental_loadShare("greetings", { greeting: "Hello," });
const apiUrl = new URLSearchParams(location.search).get("agent") as string;
// One for all renderings: with another client each component would be loaded again, and lose its state.
const client = new Client({ apiUrl });

function Page() {
  const stream = useStream<{ city: string; ui: UIMessage[] }>({ client, assistantId: "agent" });
  return (
    <main>
      <button type="button" id="ask" onClick={() => stream.submit({ city: "Lima" })}>
        Ask
      </button>
      {stream.values.ui?.map((message) => (
        <LoadExternalComponent key={message.id} stream={stream} message={message} />
      ))}
    </main>
  );
}

createRoot(document.body.appendChild(document.createElement("div"))).render(<Page />);
