import { getRouteApi, Link } from "@tanstack/react-router";
import { useMemo } from "react";
import { useAgentApi } from "../../api/agentQueries";
import type { FoundItem } from "../../api/agentServer";
import { Empty } from "../../ui/Empty";
import { score } from "../../ui/format";
import { Icon } from "../../ui/Icon";
import { summarize } from "../../ui/Json";
import { type Column, List } from "../../ui/List";
import { Split } from "../../ui/ListPage";
import { Problem } from "../../ui/Problem";
import { SearchField } from "../../ui/SearchField";
import { Ago } from "../../ui/Time";
import { useSearchParams } from "../../ui/useSearchParams";
import { parseSearch } from "../threads/thread";
import { ItemPanel } from "./ItemPanel";
import { NamespaceTree } from "./NamespaceTree";

const storeRoute = getRouteApi("/agents/$deploymentId/store");

const PAGE = 50;
const EVERY_MS = 10_000;
// No label is a period: a new item whose namespace is not chosen yet.
const NOWHERE = ".";

export function StorePage() {
  const { deploymentId } = storeRoute.useParams();
  const { namespace, q, offset, in: inside, key } = storeRoute.useSearch();
  const { replace, push } = useSearchParams({ namespace, q, offset, in: inside, key });

  const begin = Number(offset ?? 0) || 0;
  const query = useItems(deploymentId, namespace, q, begin);

  const items = query.data?.items ?? [];
  const hasScores = items.some((each) => each.score !== null);
  const columns = useMemo(() => getColumns(hasScores), [hasScores]);

  const isOpen = inside !== undefined;

  return (
    <div className="page full wide">
      <div className={isOpen ? "store open" : "store"}>
        <nav className="card namespaces" aria-label="Namespaces">
          <NamespaceTree
            key={deploymentId}
            deploymentId={deploymentId}
            selected={namespace}
            onSelect={(each) => push({ namespace: each, offset: undefined, in: undefined, key: undefined })}
          />
        </nav>
        <Split
          panel={
            inside !== undefined && (
              <ItemPanel
                key={`${inside} ${key ?? ""}`}
                deploymentId={deploymentId}
                namespace={inside === NOWHERE ? "" : inside}
                itemKey={key}
                onShow={push}
              />
            )
          }
        >
          <div className="filters">
            <SearchField
              key={deploymentId}
              label="Search items"
              placeholder="color=red, or words to search by meaning"
              value={q}
              onChange={(text) => replace({ q: text, offset: undefined })}
            />
            {query.data && (
              <button
                type="button"
                className="button"
                onClick={() => push({ in: namespace ?? NOWHERE, key: undefined })}
              >
                <Icon name="plus" />
                New item
              </button>
            )}
          </div>
          {query.error && !query.data && <Problem error={query.error} retry={() => void query.refetch()} />}
          {q && isText(q) && items.length > 0 && !hasScores && (
            <p className="notice">
              This agent has no search index (<code>store.index</code> of its configuration), so words select nothing.
              Search a field as <code>name=value</code>.
            </p>
          )}
          {items.length > 0 && (
            <List
              label="Items"
              rows={items}
              columns={columns}
              getKey={(each) => `${each.namespace.join(".")} ${each.key}`}
              onOpen={(each) => push({ in: each.namespace.join("."), key: each.key })}
            />
          )}
          {query.data && items.length === 0 && <NoItem isFiltered={Boolean(q || begin)} />}
          {(begin > 0 || items.length === PAGE) && (
            <nav className="pager" aria-label="Pages">
              <button
                type="button"
                className="button"
                disabled={begin === 0}
                onClick={() => push({ offset: begin > PAGE ? String(begin - PAGE) : undefined })}
              >
                Previous
              </button>
              <span className="soft">
                {begin + 1}–{begin + items.length}
              </span>
              <button
                type="button"
                className="button"
                disabled={items.length < PAGE}
                onClick={() => push({ offset: String(begin + PAGE) })}
              >
                Next
              </button>
            </nav>
          )}
        </Split>
      </div>
    </div>
  );
}

function useItems(deploymentId: string, namespace: string | undefined, q: string | undefined, offset: number) {
  const filter = q && !isText(q) ? parseSearch(q)?.metadata : undefined;

  return useAgentApi(
    deploymentId,
    "POST /store/items/search",
    {
      body: {
        namespace_prefix: namespace ? namespace.split(".") : [],
        ...(filter ? { filter } : {}),
        ...(q && isText(q) ? { query: q } : {}),
        limit: PAGE,
        offset,
        // Looking at an item must not make it live longer.
        refresh_ttl: false,
      },
    },
    { everyMs: EVERY_MS, keep: true },
  );
}

// Words to search by meaning; `name=value` is a filter.
function isText(q: string): boolean {
  const search = parseSearch(q);
  return search === null || search.metadata === undefined;
}

function NoItem({ isFiltered }: { isFiltered: boolean }) {
  if (isFiltered) return <Empty title="No item matches">Search fewer fields, or another namespace.</Empty>;

  return (
    <Empty title="No item here">
      The store is the memory of an agent across threads. Its graphs write it, and you can with “New item”.
    </Empty>
  );
}

function getColumns(hasScores: boolean): Column<FoundItem>[] {
  const scores: Column<FoundItem> = {
    title: "Score",
    width: "64px",
    isNumber: true,
    show: (each) => score(each.score),
  };

  return [
    {
      title: "Key",
      width: "minmax(100px, 1fr)",
      show: (each) => (
        <Link
          to="."
          search={(old: Record<string, unknown>) => ({ ...old, in: each.namespace.join("."), key: each.key })}
          className="name"
        >
          {each.key}
        </Link>
      ),
    },
    {
      title: "Namespace",
      width: "minmax(100px, 1fr)",
      isExtra: true,
      show: (each) => <span className="soft">{each.namespace.join(" / ")}</span>,
    },
    {
      title: "Value",
      width: "minmax(100px, 2fr)",
      show: (each) => <code className="soft">{summarize(each.value)}</code>,
    },
    ...(hasScores ? [scores] : []),
    {
      title: "Expires",
      width: "76px",
      isNumber: true,
      isExtra: true,
      show: (each) => (each.expires_at ? <Ago at={each.expires_at} /> : <span className="soft">–</span>),
    },
    { title: "Changed", width: "76px", isNumber: true, show: (each) => <Ago at={each.updated_at} /> },
  ];
}
