import { Icon } from "../../ui/Icon";
import { displayText, newMessage, type PromptMessage, type Role } from "./manifest";

const ROLES: [Role, string][] = [
  ["system", "System"],
  ["human", "Human"],
  ["ai", "AI"],
  ["placeholder", "Messages of a variable"],
];

interface Props {
  messages: PromptMessage[];
  onChange: (messages: PromptMessage[]) => void;
}

export function MessagesEditor({ messages, onChange }: Props) {
  const change = (key: number, changes: Partial<PromptMessage>) =>
    onChange(messages.map((each) => (each.key === key ? { ...each, ...changes, raw: null } : each)));

  const move = (index: number, step: number) => {
    const moved = [...messages];
    const [message] = moved.splice(index, 1);
    if (message) moved.splice(index + step, 0, message);
    onChange(moved);
  };

  return (
    <div className="prompt-messages">
      {messages.map((message, index) => (
        <div key={message.key} className="prompt-message">
          <div className="row spread">
            <select
              aria-label={`Role of message ${index + 1}`}
              value={message.role}
              disabled={message.isFixed}
              onChange={(event) => change(message.key, { role: event.target.value as Role })}
            >
              {ROLES.map(([role, title]) => (
                <option key={role} value={role}>
                  {title}
                </option>
              ))}
            </select>
            <span className="row tight">
              {index > 0 && (
                <button
                  type="button"
                  className="link"
                  aria-label={`Move message ${index + 1} up`}
                  onClick={() => move(index, -1)}
                >
                  Up
                </button>
              )}
              {index < messages.length - 1 && (
                <button
                  type="button"
                  className="link"
                  aria-label={`Move message ${index + 1} down`}
                  onClick={() => move(index, 1)}
                >
                  Down
                </button>
              )}
              <button
                type="button"
                className="copy"
                aria-label={`Remove message ${index + 1}`}
                onClick={() => onChange(messages.filter((each) => each.key !== message.key))}
              >
                <Icon name="close" />
              </button>
            </span>
          </div>
          {message.role === "placeholder" ? (
            <input
              className="mono"
              aria-label={`Variable of message ${index + 1}`}
              placeholder="history"
              value={message.text}
              onChange={(event) => change(message.key, { text: event.target.value })}
            />
          ) : (
            <textarea
              className="code"
              aria-label={`Text of message ${index + 1}`}
              rows={Math.min(Math.max(3, displayText(message).split("\n").length + 1), 24)}
              readOnly={message.isFixed}
              value={displayText(message)}
              onChange={(event) => change(message.key, { text: event.target.value })}
            />
          )}
          {message.isFixed && <p className="soft small">Has images or other parts, and is kept as it is.</p>}
        </div>
      ))}
      <div>
        <button
          type="button"
          className="button"
          onClick={() => onChange([...messages, newMessage(messages.length ? "human" : "system")])}
        >
          <Icon name="plus" />
          Add a message
        </button>
      </div>
    </div>
  );
}
