import { Link } from "@tanstack/react-router";
import { memo } from "react";
import { ownAgent } from "../../api/server";
import { compact, count } from "../../ui/format";
import { Icon } from "../../ui/Icon";
import { Json, LongText, PREVIEW_CHARS } from "../../ui/Json";
import { Markdown } from "../../ui/Markdown";
import { getPicture, Picture } from "../../ui/Picture";
import { Ago } from "../../ui/Time";
import { asBlocks, type Block, type Item, type Message, parseModelCall, type ToolCall } from "./messages";

const ROLES: Record<string, string> = { human: "You", ai: "Agent", tool: "Tool", system: "System" };
const TEXTS = new Set(["text", "text_delta", "output_text"]);
// Said again as tool calls, or of no use to a reader.
const LEFT_OUT = new Set(["tool_use", "tool_call", "tool_call_chunk", "input_json_delta", "function_call"]);

interface Props {
  item: Item;
  isStreaming: boolean;
  onEdit: ((item: Item) => void) | null;
  onAgain: ((item: Item) => void) | null;
}

/** One message: its text, its reasoning, its images, and the tools that it calls with what they returned. */
export const MessageCard = memo(function MessageCard({ item, isStreaming, onEdit, onAgain }: Props) {
  const { message, results } = item;
  const reasoning = getReasoning(message);

  return (
    <article className={`message ${message.type}`} aria-label={`Message of ${ROLES[message.type] ?? message.type}`}>
      <header>
        <strong>{ROLES[message.type] ?? message.type}</strong>
        {message.name && <code className="soft">{message.name}</code>}
        {isStreaming && <span className="soft small">writes…</span>}
        {message.isUnsaved && (
          <span className="tag unsaved" title="The run was broken off before a checkpoint had this message">
            not part of the thread
          </span>
        )}
        <span className="message-actions">
          {onEdit && !message.isUnsaved && message.type === "human" && (
            <button
              type="button"
              className="copy"
              title="Edit and run again from here"
              aria-label="Edit"
              onClick={() => onEdit(item)}
            >
              <Icon name="edit" />
            </button>
          )}
          {onAgain && !message.isUnsaved && message.type === "ai" && (
            <button
              type="button"
              className="copy"
              title="Run again from before this message"
              aria-label="Run again"
              onClick={() => onAgain(item)}
            >
              <Icon name="rotate" />
            </button>
          )}
        </span>
      </header>
      {reasoning && (
        <details className="reasoning">
          <summary>Reasoning</summary>
          <LongText text={reasoning} name="reasoning" />
        </details>
      )}
      {asBlocks(message.content).map((block, index) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: blocks of a message are only ever added at its end
        <BlockView key={index} block={block} type={message.type} />
      ))}
      {message.type === "ai" && !isStreaming && <Facts message={message} />}
      {message.tool_calls?.map((call) => (
        <ToolCard key={call.id} call={call} result={results.get(call.id)} isStreaming={isStreaming} />
      ))}
    </article>
  );
});

// Which model wrote a message and when, what it used, and the call of the model in the trace.
function Facts({ message }: { message: Message }) {
  const { usage_metadata: usage, response_metadata: about, id } = message;
  const model = about?.model_name ?? about?.model;
  const { call, beganAt } = parseModelCall(id);
  const tokens = usage?.total_tokens ?? (usage?.input_tokens ?? 0) + (usage?.output_tokens ?? 0);
  if (typeof model !== "string" && !tokens && !call) return null;

  return (
    <p className="message-facts soft small">
      {typeof model === "string" && <code>{model}</code>}
      {beganAt !== undefined && <Ago at={new Date(beganAt).toISOString()} />}
      {tokens > 0 && (
        <span title={`${count(usage?.input_tokens ?? 0)} in, ${count(usage?.output_tokens ?? 0)} out`}>
          {compact(tokens)} tokens
        </span>
      )}
      {call && ownAgent === null && (
        <Link to="/traces" search={{ run: call }} className="text">
          Trace
        </Link>
      )}
    </p>
  );
}

function BlockView({ block, type }: { block: Block; type: string }) {
  const kind = String(block.type ?? "");
  if (TEXTS.has(kind) && typeof block.text === "string") {
    if (block.text.length > 10 * PREVIEW_CHARS) return <LongText text={block.text} name="message" />;

    return type === "human" ? (
      <p className="said" dir="auto">
        {block.text}
      </p>
    ) : (
      <Markdown text={block.text} />
    );
  }

  if (LEFT_OUT.has(kind) || isReasoning(kind)) return null;
  const picture = getPicture(block);
  if (picture !== null) return <Picture address={picture} />;

  return <Json value={block} name={kind || "content"} open={0} />;
}

function ToolCard({
  call,
  result,
  isStreaming,
}: {
  call: ToolCall;
  result: Message | undefined;
  isStreaming: boolean;
}) {
  const isFailed = result?.status === "error";

  return (
    <section className={isFailed ? "tool-call failed" : "tool-call"} aria-label={`Tool ${call.name}`}>
      <div className="tool-call-head">
        <Icon name="tool" />
        <code>{call.name}</code>
        <span className="soft small">
          {result ? (isFailed ? "failed" : "done") : isStreaming ? "is called" : "no result"}
        </span>
      </div>
      <Json value={call.args} name={`${call.name}-arguments`} open={1} />
      {result && (
        <div className="tool-result">
          {asBlocks(result.content).map((block, index) =>
            typeof block.text === "string" ? (
              // biome-ignore lint/suspicious/noArrayIndexKey: a result is whole
              <LongText key={index} text={block.text} name={`${call.name}-result`} />
            ) : (
              // biome-ignore lint/suspicious/noArrayIndexKey: a result is whole
              <BlockView key={index} block={block} type="tool" />
            ),
          )}
        </div>
      )}
    </section>
  );
}

function isReasoning(kind: string): boolean {
  return kind === "thinking" || kind === "reasoning" || kind === "reasoning_content" || kind === "redacted_thinking";
}

// Models give their reasoning as blocks of the content, or beside it.
function getReasoning(message: Message): string {
  const beside = message.additional_kwargs?.reasoning_content;
  const within = asBlocks(message.content)
    .filter((block) => isReasoning(String(block.type)))
    .map((block) => block.thinking ?? block.reasoning ?? block.text)
    .filter((text) => typeof text === "string");

  return [...(typeof beside === "string" ? [beside] : []), ...within].join("\n");
}
