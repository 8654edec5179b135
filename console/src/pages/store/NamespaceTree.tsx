import { useState } from "react";
import { useAgentApi } from "../../api/agentQueries";
import { Icon } from "../../ui/Icon";
import { Problem } from "../../ui/Problem";

const PAGE = 200;

interface Props {
  deploymentId: string;
  // Labels joined by periods, which no label contains.
  selected: string | undefined;
  onSelect: (namespace: string | undefined) => void;
}

// The namespaces as a tree. Each level is read when it is opened: a store may have millions.
export function NamespaceTree({ deploymentId, selected, onSelect }: Props) {
  return (
    <>
      <div className={selected ? "namespace" : "namespace current"}>
        <button
          type="button"
          className="link"
          aria-current={selected ? undefined : "true"}
          onClick={() => onSelect(undefined)}
        >
          All items
        </button>
      </div>
      <Level deploymentId={deploymentId} above={[]} selected={selected} onSelect={onSelect} />
    </>
  );
}

function Level({ deploymentId, above, selected, onSelect }: Props & { above: string[] }) {
  const [limit, setLimit] = useState(PAGE);
  const { data, error } = useAgentApi(
    deploymentId,
    "POST /store/namespaces",
    { body: { prefix: above, max_depth: above.length + 1, limit: Math.min(limit, 1000) } },
    { keep: true },
  );

  if (!data) return error ? <Problem error={error} /> : null;
  const below = data.namespaces.filter((each) => each.length === above.length + 1);
  if (below.length === 0) return above.length > 0 ? <p className="soft small">no namespace below</p> : null;

  return (
    <ul>
      {below.map((each) => (
        <Branch
          key={each.join(".")}
          deploymentId={deploymentId}
          namespace={each}
          selected={selected}
          onSelect={onSelect}
        />
      ))}
      {data.namespaces.length === limit && limit < 1000 && (
        <li>
          <button type="button" className="link" onClick={() => setLimit(limit + 4 * PAGE)}>
            More
          </button>
        </li>
      )}
    </ul>
  );
}

function Branch({ deploymentId, namespace, selected, onSelect }: Props & { namespace: string[] }) {
  const path = namespace.join(".");
  const label = namespace.at(-1) ?? "";
  const isCurrent = selected === path;
  const [isOpen, setOpen] = useState(isCurrent || Boolean(selected?.startsWith(`${path}.`)));

  return (
    <li>
      <div className={isCurrent ? "namespace current" : "namespace"}>
        <button
          type="button"
          className="copy"
          aria-expanded={isOpen}
          aria-label={`${isOpen ? "Close" : "Open"} ${label}`}
          onClick={() => setOpen(!isOpen)}
        >
          <Icon name={isOpen ? "down" : "right"} />
        </button>
        <button
          type="button"
          className="link"
          aria-current={isCurrent ? "true" : undefined}
          title={label}
          onClick={() => onSelect(path)}
        >
          {label}
        </button>
      </div>
      {isOpen && <Level deploymentId={deploymentId} above={namespace} selected={selected} onSelect={onSelect} />}
    </li>
  );
}
