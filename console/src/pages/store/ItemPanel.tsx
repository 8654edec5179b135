import { useState } from "react";
import { useAgentApi, useAgentChange } from "../../api/agentQueries";
import type { StoredItem } from "../../api/agentServer";
import { Confirm } from "../../ui/Confirm";
import { Empty } from "../../ui/Empty";
import { TextField } from "../../ui/Field";
import { Form, FormButtons } from "../../ui/Form";
import { Icon } from "../../ui/Icon";
import { isBranch, Json } from "../../ui/Json";
import { Problem } from "../../ui/Problem";
import { JsonInput } from "../../ui/SchemaForm";
import { SidePanel } from "../../ui/SidePanel";
import { Ago } from "../../ui/Time";

interface Props {
  deploymentId: string;
  namespace: string;
  // Without a key the panel makes a new item.
  itemKey: string | undefined;
  onShow: (changes: Record<string, string | undefined>) => void;
}

// One item of the store: its value, how long it lives; changed, made and deleted here.
export function ItemPanel({ deploymentId, namespace, itemKey, onShow }: Props) {
  const [isEditing, setEditing] = useState(false);
  const close = () => onShow({ in: undefined, key: undefined });
  const query = useAgentApi(
    deploymentId,
    "GET /store/items",
    { query: { namespace, ...(itemKey === undefined ? {} : { key: itemKey }), refresh_ttl: false } },
    { enabled: itemKey !== undefined },
  );

  if (itemKey === undefined) {
    return (
      <SidePanel title="New item" onClose={close}>
        <ItemForm
          deploymentId={deploymentId}
          namespace={namespace}
          onCancel={close}
          onSaved={(inside, key) => onShow({ in: inside, key })}
        />
      </SidePanel>
    );
  }

  const item = query.data;

  return (
    <SidePanel title={itemKey} onClose={close}>
      {query.error && !item && <Problem error={query.error} retry={() => void query.refetch()} />}
      {item === null && <Empty title="No such item">It may have been deleted, or its lifetime has ended.</Empty>}
      {item && isEditing && (
        <ItemForm
          deploymentId={deploymentId}
          namespace={namespace}
          item={item}
          onCancel={() => setEditing(false)}
          onSaved={() => setEditing(false)}
        />
      )}
      {item && !isEditing && (
        <div className="stack">
          <div className="row">
            <button type="button" className="button" onClick={() => setEditing(true)}>
              <Icon name="edit" />
              Edit
            </button>
            <DeleteItem deploymentId={deploymentId} item={item} onDeleted={close} />
          </div>
          <dl className="facts">
            <dt>Namespace</dt>
            <dd>{item.namespace.join(" / ")}</dd>
            <dt>Lifetime</dt>
            <dd>
              {item.expires_at ? (
                <>
                  {item.ttl} minutes after it was last used; expires <Ago at={item.expires_at} />
                </>
              ) : (
                "without end"
              )}
            </dd>
            <dt>Changed</dt>
            <dd>
              <Ago at={item.updated_at} />
            </dd>
            <dt>Created</dt>
            <dd>
              <Ago at={item.created_at} />
            </dd>
          </dl>
          <Json value={item.value} name="value" open={2} />
        </div>
      )}
    </SidePanel>
  );
}

function DeleteItem({
  deploymentId,
  item,
  onDeleted,
}: {
  deploymentId: string;
  item: StoredItem;
  onDeleted: () => void;
}) {
  const [isAsking, setAsking] = useState(false);
  const remove = useAgentChange(deploymentId, "DELETE /store/items", onDeleted);

  return (
    <>
      <button type="button" className="button danger" onClick={() => setAsking(true)}>
        <Icon name="trash" />
        Delete
      </button>
      {isAsking && (
        <Confirm
          title={`Delete ${item.key}?`}
          action="Delete the item"
          cancel="Keep"
          change={remove}
          onConfirm={() => remove.mutate({ body: { namespace: item.namespace, key: item.key } })}
          onClose={() => setAsking(false)}
        >
          <p>The agent forgets it. This cannot be undone.</p>
        </Confirm>
      )}
    </>
  );
}

interface FormProps {
  deploymentId: string;
  namespace: string;
  item?: StoredItem;
  onCancel: () => void;
  onSaved: (namespace: string, key: string) => void;
}

function ItemForm({ deploymentId, namespace, item, onCancel, onSaved }: FormProps) {
  const [inside, setInside] = useState(namespace);
  const [key, setKey] = useState(item?.key ?? "");
  const [value, setValue] = useState<unknown>(item?.value ?? {});
  const [ttl, setTtl] = useState(item?.ttl?.toString() ?? "");
  const save = useAgentChange(deploymentId, "PUT /store/items", () => onSaved(inside, key));

  const isObject = isBranch(value) && !Array.isArray(value);
  const isComplete = isObject && key !== "" && inside !== "" && !Number.isNaN(Number(ttl));

  const submit = () => {
    if (!isObject) return;
    save.mutate({
      body: {
        namespace: inside.split("."),
        key,
        value: value as Record<string, unknown>,
        ...(ttl.trim() ? { ttl: Number(ttl) } : {}),
      },
    });
  };

  return (
    <Form change={save} onSubmit={submit}>
      {!item && (
        <>
          <TextField
            label="Namespace"
            hint="Labels joined by periods, such as memories.ada"
            name="namespace"
            isRequired
            value={inside}
            onChange={setInside}
          />
          <TextField label="Key" name="key" isRequired value={key} onChange={setKey} />
        </>
      )}
      <JsonInput label="Value" hint="A JSON object" rows={8} value={value} onChange={setValue} />
      {value !== undefined && !isObject && <p className="error">The value must be an object: {"{…}"}</p>}
      <TextField
        label="Lifetime in minutes"
        hint="Empty: the default of the agent's configuration, or without end"
        name="ttl"
        inputMode="decimal"
        value={ttl}
        onChange={setTtl}
      />
      <FormButtons action="Save" isDisabled={!isComplete} onCancel={onCancel} />
    </Form>
  );
}
