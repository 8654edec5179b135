import { useApi, useChange } from "../../api/queries";
import { useMay } from "../../shell/session";
import { CopyButton } from "../../ui/Copy";
import { Problem } from "../../ui/Problem";

// A link with which anybody reads the run and those below it, without an account.
export function Share({ runId }: { runId: string }) {
  const path = { run_id: runId };
  const share = useApi("GET /runs/{run_id}/share", { path });
  const create = useChange("PUT /runs/{run_id}/share");
  const remove = useChange("DELETE /runs/{run_id}/share");
  const mayShare = useMay("runs:share");

  const error = share.error ?? create.error ?? remove.error;
  const address = share.data && `${location.origin}/console/shared/${share.data.share_token}`;

  return (
    <div className="actions card">
      {error && <Problem error={error} />}
      {address ? (
        <>
          <span className="row tight share-link">
            <a className="text" href={address} target="_blank" rel="noreferrer">
              <code>{address}</code>
            </a>
            <CopyButton text={address} what="link" />
          </span>
          <span className="soft">
            Whoever has the link sees this run and those below it with their inputs and outputs, without an account.
          </span>
          {mayShare && (
            <button
              type="button"
              className="button danger"
              disabled={remove.isPending}
              onClick={() => remove.mutate({ path })}
            >
              Stop sharing
            </button>
          )}
        </>
      ) : (
        share.data === null && (
          <>
            <span className="soft">Not shared. A link lets anybody read this run and those below it.</span>
            {mayShare && (
              <button
                type="button"
                className="button"
                disabled={create.isPending}
                onClick={() => create.mutate({ path, body: {} })}
              >
                Create a link
              </button>
            )}
          </>
        )
      )}
    </div>
  );
}
