import { useState } from "react";
import type { Channel, ChannelRequest, NewChannel } from "../../api/platform";
import { useApi, useChange } from "../../api/queries";
import { Confirm } from "../../ui/Confirm";
import { CopyButton } from "../../ui/Copy";
import { Empty } from "../../ui/Empty";
import { SelectField, TextField } from "../../ui/Field";
import { CardForm, FormButtons } from "../../ui/Form";
import { Icon } from "../../ui/Icon";
import { Problem } from "../../ui/Problem";
import { Status } from "../../ui/Status";
import { Table } from "../../ui/Table";
import { AgoOrNever } from "../../ui/Time";

const KINDS = [
  ["webhook", "Webhook"],
  ["mail", "E-mail"],
] as const;

// The channels that alerts are sent to.
export function ChannelsTab() {
  const channels = useApi("GET /alerts/channels", {}, { everyMs: 10_000 });
  const [isAdding, setAdding] = useState(false);
  const [newChannel, setNewChannel] = useState<NewChannel | null>(null);
  const [removal, setRemoval] = useState<Channel | null>(null);

  const finish = (channel: NewChannel) => {
    setAdding(false);
    setNewChannel(channel.secret ? channel : null);
  };

  return (
    <>
      {!isAdding && (
        <div>
          <button type="button" className="button main" onClick={() => setAdding(true)}>
            <Icon name="plus" />
            Add a channel
          </button>
        </div>
      )}
      {isAdding && <AddChannel onDone={finish} onClose={() => setAdding(false)} />}
      {newChannel?.secret && <Secret of={newChannel} text={newChannel.secret} onClose={() => setNewChannel(null)} />}
      {channels.error && <Problem error={channels.error} />}
      {channels.data?.length === 0 && !isAdding && (
        <Empty title="No channels" command="portside alerts add https://chat.example.com/hooks/…">
          Alerts are sent to webhooks and by mail: once when they begin, and once when they end.
        </Empty>
      )}
      {channels.data && channels.data.length > 0 && (
        <section className="card" aria-label="Channels">
          <Table
            label="Channels"
            rows={channels.data}
            getKey={(each) => each.id}
            isStacked
            columns={[
              { title: "Name", show: (each) => each.name },
              { title: "Kind", show: (each) => KINDS.find(([kind]) => kind === each.kind)?.[1] },
              { title: "Target", show: (each) => <code>{each.target}</code> },
              {
                title: "Last message",
                show: (each) =>
                  each.last_error ? (
                    <>
                      <Status tone="bad" word="Not delivered" />
                      <p className="bad-text">{each.last_error}</p>
                    </>
                  ) : (
                    <AgoOrNever at={each.last_delivered_at} />
                  ),
              },
              { title: "Test", show: (each) => <Test of={each} /> },
              {
                title: "Actions",
                isActions: true,
                show: (each) => (
                  <button
                    type="button"
                    className="copy"
                    aria-label={`Remove ${each.name}`}
                    onClick={() => setRemoval(each)}
                  >
                    <Icon name="trash" />
                  </button>
                ),
              },
            ]}
          />
        </section>
      )}
      {removal && <RemoveChannel of={removal} onClose={() => setRemoval(null)} />}
    </>
  );
}

function AddChannel({ onDone, onClose }: { onDone: (channel: NewChannel) => void; onClose: () => void }) {
  const [draft, setDraft] = useState({ kind: "webhook" as ChannelRequest["kind"], name: "", url: "", to: "" });
  const set = (changes: Partial<typeof draft>) => setDraft((old) => ({ ...old, ...changes }));
  const create = useChange("POST /alerts/channels", onDone);

  const isWebhook = draft.kind === "webhook";

  const add = () => {
    const to = draft.to.split(/[\s,;]+/).filter(Boolean);
    const target = isWebhook ? { url: draft.url.trim() } : { to };
    create.mutate({ body: { kind: draft.kind, name: draft.name.trim(), ...target } });
  };

  return (
    <CardForm title="Add a channel" change={create} onSubmit={add}>
      <div className="fields two">
        <TextField
          label="Name"
          name="name"
          isRequired
          autoFocus
          placeholder="our-chat"
          value={draft.name}
          onChange={(text) => set({ name: text })}
        />
        <SelectField label="Kind" value={draft.kind} onChange={(kind) => set({ kind })} options={KINDS} />
        {isWebhook ? (
          <TextField
            label="Address"
            name="url"
            hint="It gets a signed POST. It is stored encrypted, and not shown again."
            isRequired
            inputMode="url"
            placeholder="https://chat.example.com/hooks/…"
            value={draft.url}
            onChange={(text) => set({ url: text })}
          />
        ) : (
          <TextField
            label="To"
            name="to"
            hint="Addresses, separated by commas."
            isRequired
            inputMode="email"
            placeholder="ops@example.com"
            value={draft.to}
            onChange={(text) => set({ to: text })}
          />
        )}
      </div>
      <FormButtons action="Add" isDisabled={!draft.name.trim()} onCancel={onClose} />
    </CardForm>
  );
}

// The secret that signs the messages of a webhook. Nobody can read it later.
function Secret({ of: channel, text, onClose }: { of: NewChannel; text: string; onClose: () => void }) {
  return (
    <section className="card" aria-label="The channel is added">
      <div className="card-head">
        <h2>{channel.name} is added. Its secret is shown once</h2>
        <button type="button" className="copy" aria-label="Close" onClick={onClose}>
          <Icon name="close" />
        </button>
      </div>
      <div className="card-body once">
        <code>{text}</code>
        <CopyButton text={text} what="secret" />
      </div>
    </section>
  );
}

function Test({ of: channel }: { of: Channel }) {
  const test = useChange("POST /alerts/channels/{channel_id}/test");

  return (
    <>
      <button
        type="button"
        className="link"
        aria-label={`Send a test message to ${channel.name}`}
        disabled={test.isPending}
        onClick={() => test.mutate({ path: { channel_id: channel.id } })}
      >
        Send a message
      </button>{" "}
      {test.data?.is_delivered && <Status tone="good" word="Delivered" />}
      {(test.error || test.data?.error) && (
        <p className="bad-text" role="alert">
          {test.error?.message ?? test.data?.error}
        </p>
      )}
    </>
  );
}

function RemoveChannel({ of: channel, onClose }: { of: Channel; onClose: () => void }) {
  const remove = useChange("DELETE /alerts/channels/{channel_id}", onClose);

  return (
    <Confirm
      title={`Remove ${channel.name}?`}
      action="Remove"
      change={remove}
      onConfirm={() => remove.mutate({ path: { channel_id: channel.id } })}
      onClose={onClose}
    >
      <p>No alerts are sent there any more, and its address is deleted.</p>
    </Confirm>
  );
}
