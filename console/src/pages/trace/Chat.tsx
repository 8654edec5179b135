import { useState } from "react";
import { isBranch, Json, LongText } from "../../ui/Json";
import { Markdown } from "../../ui/Markdown";
import { getPicture, Picture } from "../../ui/Picture";
import { type Message, parseOrKeep } from "./messages";

const SHOWN = 40;
// Formatting a longer text would stop the page for a moment.
const FORMATTED_CHARS = 20_000;

// Messages as a conversation, the last ones first to be seen.
export function Chat({ messages }: { messages: Message[] }) {
  const [shown, setShown] = useState(SHOWN);
  const hidden = Math.max(messages.length - shown, 0);

  return (
    <ol className="chat">
      {hidden > 0 && (
        <li>
          <button type="button" className="link" onClick={() => setShown(shown + 5 * SHOWN)}>
            {hidden.toLocaleString("en")} earlier messages
          </button>
        </li>
      )}
      {messages.slice(hidden).map((message, index) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: messages of a finished run never move
        <li key={hidden + index} className={`chat-message of-${message.role}`}>
          <p className="chat-role">{message.title}</p>
          <MessageText message={message} />
          {message.others.map((part, place) => (
            // biome-ignore lint/suspicious/noArrayIndexKey: see above
            <Part key={place} value={part} />
          ))}
          {message.toolCalls.map((call, place) => (
            // biome-ignore lint/suspicious/noArrayIndexKey: see above
            <div key={place} className="tool-call">
              <p>
                <span className="soft">calls</span> <code>{call.name}</code>
              </p>
              {call.args !== undefined && <Json value={call.args} name="arguments" />}
            </div>
          ))}
        </li>
      ))}
    </ol>
  );
}

function Part({ value }: { value: unknown }) {
  const picture = isBranch(value) ? getPicture(value) : null;
  return picture === null ? <Json value={value} name="part" open={0} /> : <Picture address={picture} />;
}

function MessageText({ message }: { message: Message }) {
  const { role, text } = message;
  if (!text) return null;

  if (role === "tool" && text.length <= FORMATTED_CHARS) {
    const value = parseOrKeep(text);
    if (isBranch(value)) return <Json value={value} name="result" />;
  }

  if (role === "tool" || text.length > FORMATTED_CHARS) return <LongText text={text} name="message" />;
  return <Markdown text={text} />;
}
