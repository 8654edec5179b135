import type { ApiError } from "../api/client";
import { CopyButton } from "./Copy";
import { Icon } from "./Icon";

// What went wrong, and what to do about it.
export function Problem({ error, retry }: { error: ApiError; retry?: () => void }) {
  return (
    <div className="problem" role="alert">
      <Icon name="alert" />
      <div>
        <strong>{title(error)}</strong>
        <p>{error.message}</p>
        <p className="soft">{advice(error)}</p>
        <div className="row">
          {retry && (
            <button type="button" className="button" onClick={retry}>
              Try again
            </button>
          )}
          {error.requestId && error.status >= 500 && (
            <span className="soft small">
              Request <code>{error.requestId.slice(0, 12)}</code>{" "}
              <CopyButton text={error.requestId} what="request id" />
            </span>
          )}
        </div>
      </div>
    </div>
  );
}

function title(error: ApiError): string {
  switch (error.status) {
    case 0:
      return "No connection";
    case 403:
      return "You may not do this";
    case 404:
      return "There is no such thing here";
    case 409:
      return "Something else is in the way";
    case 422:
      return "Some values are not valid";
    case 429:
      return "Too many requests";
    default:
      return error.status >= 500 ? "The platform failed" : "The platform refused this";
  }
}

function advice(error: ApiError): string {
  switch (error.status) {
    case 0:
      return "This page goes on by itself as soon as the platform answers.";
    case 403:
      return "An admin of the workspace can give you a role that allows it.";
    case 404:
      return "It may have been deleted, or it belongs to another workspace: the switch is at the top left.";
    case 429:
      return "Wait a moment, then try again.";
    default:
      return error.status >= 500 ? "The log of the platform names the reason under the id of the request." : "";
  }
}
