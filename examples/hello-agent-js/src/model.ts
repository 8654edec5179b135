// A stand-in for a chat model that needs no key: it knows which tool a sentence is about.

import { BaseChatModel } from "@langchain/core/language_models/chat_models";
import { AIMessage, type BaseMessage } from "@langchain/core/messages";

const SUM = /(-?\d+(?:\.\d+)?)\s*([-+*/])\s*(-?\d+(?:\.\d+)?)/;
const SEND = /^send (.+)/i;

export class PocketModel extends BaseChatModel {
  override _llmType() {
    return "pocket";
  }

  // It knows its tools by heart.
  override bindTools() {
    return this;
  }

  override async _generate(messages: BaseMessage[]) {
    const message = answer(messages);
    return { generations: [{ text: message.text, message }] };
  }
}

function answer(messages: BaseMessage[]): AIMessage {
  const last = messages[messages.length - 1];
  const said = last?.text ?? "";
  if (last?.type === "tool") {
    return new AIMessage(`The answer: ${said}`);
  }
  const [, left, operator, right] = SUM.exec(said) ?? [];
  if (operator !== undefined) {
    return calling("calculate", { left: Number(left), operator, right: Number(right) }, messages.length);
  }
  const text = SEND.exec(said)?.[1];
  return text === undefined
    ? new AIMessage(`Hello! Ask me for 6*7, or tell me to send something. You said: ${said}`)
    : calling("send", { text }, messages.length);
}

function calling(name: string, args: Record<string, unknown>, number: number): AIMessage {
  return new AIMessage({ content: "", tool_calls: [{ id: `call-${number}`, name, args, type: "tool_call" }] });
}
