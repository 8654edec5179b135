import { CopyButton } from "./Copy";
import { errorHead, findOwnLine } from "./errorText";
import { LongText } from "./Json";

// An error of an agent: what it says and where in the agent's own code first, the whole stack behind it.
export function ErrorText({ text }: { text: string }) {
  const head = errorHead(text);
  const own = findOwnLine(text);

  return (
    <div className="value-error">
      <CopyButton text={text} what="error" />
      <LongText text={head} name="error" />
      {own && (
        <p className="own-line">
          <code>
            {own.file}:{own.line}
          </code>
          {own.where && (
            <span className="soft">
              {" "}
              in <code>{own.where}</code>
            </span>
          )}
          {own.code && <code className="own-code">{own.code}</code>}
        </p>
      )}
      {head !== text && (
        <details>
          <summary>Whole stack</summary>
          <LongText text={text} name="error" />
        </details>
      )}
    </div>
  );
}
