// The chat page: a conversation with the agent that serves it, as it arrives, kept over a reload.
//
// A platform without a host for each agent shows the page in an origin of its own, which has no storage. So the thread is
// in the address, and the key stays in memory.

import { useStream } from "@langchain/langgraph-sdk/react";
import { type FormEvent, useState } from "react";
import { createRoot } from "react-dom/client";

type Message = { id?: string; type: string; content: unknown };

// The page is at /chat/ of the agent. Behind a prefix, such as /agents/chat-page/chat/, this is still right.
const apiUrl = new URL("..", location.href).href.replace(/\/$/, "");

function Chat({ apiKey, onRefused }: { apiKey: string; onRefused: () => void }) {
  const [threadId, setThreadId] = useState(() => location.hash.slice(1) || null);
  const chat = useStream<{ messages: Message[] }>({
    apiUrl,
    apiKey,
    assistantId: "agent",
    threadId,
    onThreadId: (id) => {
      location.hash = id;
      setThreadId(id);
    },
    onError: (error) => {
      if (/\b40[13]\b/.test(String(error))) onRefused();
    },
  });

  const send = (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault();
    const form = event.currentTarget;
    const content = String(new FormData(form).get("text") ?? "").trim();
    if (!content) return;

    // The visitor sees the message at once, and not only when the server has it.
    const message = { type: "human", content };
    chat.submit(
      { messages: [message] },
      { optimisticValues: (values) => ({ ...values, messages: [...(values.messages ?? []), message] }) },
    );
    form.reset();
  };

  return (
    <main>
      <ol aria-live="polite">
        {chat.messages.map((message, place) => (
          <li key={message.id ?? place} className={message.type}>
            {String(message.content)}
          </li>
        ))}
      </ol>
      {chat.error ? <p role="alert">{String(chat.error)}</p> : null}
      <form onSubmit={send}>
        <input name="text" aria-label="Message" placeholder="Say something" autoComplete="off" autoFocus />
        {chat.isLoading ? (
          <button type="button" onClick={() => chat.stop()}>
            Stop
          </button>
        ) : (
          <button type="submit">Send</button>
        )}
      </form>
    </main>
  );
}

// A deployed agent wants a key of the platform, unless its langgraph.json has rules of its own; `portside dev` wants none.
function KeyForm({ onKey }: { onKey: (key: string) => void }) {
  const use = (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault();
    onKey(String(new FormData(event.currentTarget).get("key")));
  };

  return (
    <form onSubmit={use}>
      <p>This agent wants a key.</p>
      <input name="key" type="password" aria-label="Key" autoFocus />
      <button type="submit">Use it</button>
    </form>
  );
}

function Page() {
  const [key, setKey] = useState("");
  const [isRefused, setRefused] = useState(false);
  if (!isRefused) return <Chat apiKey={key} onRefused={() => setRefused(true)} />;

  const use = (typed: string) => {
    setKey(typed);
    setRefused(false);
  };
  return <KeyForm onKey={use} />;
}

createRoot(document.getElementById("page") as HTMLElement).render(<Page />);
