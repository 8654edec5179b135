import { useState } from "react";
import { useChange } from "../../api/queries";
import { Confirm } from "../../ui/Confirm";
import { Exact } from "../../ui/Time";

// Replaces the key that encrypts every secret, while the platform serves.
export function MasterKey() {
  const [isAsking, setAsking] = useState(false);
  const rotate = useChange("POST /system/master-key/rotate", () => setAsking(false));

  return (
    <section className="card" aria-label="Master key">
      <h2>Master key</h2>
      <div className="card-body stack">
        <p className="soft small">
          It encrypts the secrets of deployments, tokens of git hosts and alert channels. Replace it if somebody else
          may have seen it, or once a year.
        </p>
        {rotate.data && (
          <p role="status">
            {rotate.data.reencrypted} values are encrypted with the new key. The older one is removed after{" "}
            <Exact at={rotate.data.older_key_until} />, and stays in <code>master-key.previous</code>.
          </p>
        )}
        <div>
          <button type="button" className="button" disabled={rotate.isPending} onClick={() => setAsking(true)}>
            Replace the master key
          </button>
        </div>
      </div>
      {isAsking && (
        <Confirm
          title="Replace the master key?"
          action="Replace it"
          change={rotate}
          onConfirm={() => rotate.mutate({})}
          onClose={() => setAsking(false)}
        >
          <p>
            Every secret is encrypted with a new key; requests and agents go on. Backups keep the key that they were
            made with.
          </p>
        </Confirm>
      )}
    </section>
  );
}
