import { type ClipboardEvent, useRef, useState } from "react";
import { Icon } from "../../ui/Icon";
import { SchemaForm } from "../../ui/SchemaForm";
import { getFields, hasMessages, type Schema } from "../../ui/schema";

const MAX_IMAGE_BYTES = 8_000_000;

export interface Said {
  text: string;
  // data: addresses of images.
  images: string[];
}

interface Props {
  schema: Schema | null | undefined;
  isRunning: boolean;
  // Whether the agent has taken it; what it has not taken stays here.
  onSend: (input: Record<string, unknown>, said: Said | null) => Promise<boolean>;
  onStop: () => void;
}

// What goes to the agent: a chat box if its input has messages, and a form for the other fields of its input.
export function Composer({ schema, isRunning, onSend, onStop }: Props) {
  const isChat = hasMessages(schema);
  const [text, setText] = useState("");
  const [images, setImages] = useState<string[]>([]);
  const [values, setValues] = useState<Record<string, unknown>>({});
  const [problem, setProblem] = useState<string | null>(null);
  const file = useRef<HTMLInputElement>(null);

  const others = getFields(schema).filter((each) => !isChat || each.name !== "messages");
  const isEmpty = isChat && !text.trim() && images.length === 0;

  const send = async () => {
    if (isRunning || isEmpty) return;
    setText("");
    setImages([]);
    if (await onSend(values, isChat ? { text, images } : null)) return;
    setText((typed) => typed || text);
    setImages((added) => (added.length > 0 ? added : images));
  };

  const add = async (files: Iterable<File>) => {
    for (const each of files) {
      if (!each.type.startsWith("image/")) continue;

      if (each.size > MAX_IMAGE_BYTES) setProblem(`${each.name} is larger than 8 MB.`);
      else {
        const address = await readFile(each);
        setImages((old) => [...old, address]);
      }
    }
  };

  const onPaste = (event: ClipboardEvent) => {
    if (event.clipboardData.files.length === 0) return;
    event.preventDefault();
    void add(event.clipboardData.files);
  };

  return (
    <form
      className="composer"
      aria-label="Input"
      onSubmit={(event) => {
        event.preventDefault();
        void send();
      }}
    >
      {others.length > 0 &&
        (isChat ? (
          <details
            // A browser cannot point at a field that is folded away.
            onInvalidCapture={(event) => {
              event.currentTarget.open = true;
            }}
          >
            <summary>More input: {others.map((each) => each.title).join(", ")}</summary>
            <SchemaForm schema={schema} values={values} onChange={setValues} without={["messages"]} />
          </details>
        ) : (
          <SchemaForm schema={schema} values={values} onChange={setValues} />
        ))}
      {problem && <p className="error">{problem}</p>}
      {images.length > 0 && (
        <div className="row">
          {images.map((image) => (
            <button
              key={image}
              type="button"
              className="attached"
              aria-label="Remove this image"
              onClick={() => setImages((old) => old.filter((each) => each !== image))}
            >
              <img src={image} alt="" />
            </button>
          ))}
        </div>
      )}
      <div className="composer-row">
        {isChat && (
          <textarea
            aria-label="Message"
            placeholder="Message"
            title="Enter sends, Shift+Enter begins a line"
            dir="auto"
            rows={Math.min(text.split("\n").length, 8)}
            value={text}
            onChange={(event) => setText(event.target.value)}
            onPaste={onPaste}
            onKeyDown={(event) => {
              if (event.key !== "Enter" || event.shiftKey || event.nativeEvent.isComposing) return;
              event.preventDefault();
              event.currentTarget.form?.requestSubmit();
            }}
          />
        )}
        {isChat && (
          <>
            <input
              ref={file}
              type="file"
              accept="image/png,image/jpeg,image/gif,image/webp"
              multiple
              hidden
              onChange={(event) => {
                void add(event.target.files ?? []);
                event.target.value = "";
              }}
            />
            <button
              type="button"
              className="button"
              aria-label="Add images"
              title="Add images"
              onClick={() => file.current?.click()}
            >
              <Icon name="picture" />
            </button>
          </>
        )}
        {isRunning ? (
          <button type="button" className="button" onClick={onStop}>
            <Icon name="stop" /> Stop
          </button>
        ) : (
          <button type="submit" className="button main" disabled={isEmpty}>
            <Icon name={isChat ? "send" : "play"} /> {isChat ? "Send" : "Run"}
          </button>
        )}
      </div>
    </form>
  );
}

function readFile(file: File): Promise<string> {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(String(reader.result));
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}
