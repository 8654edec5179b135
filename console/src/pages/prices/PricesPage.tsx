import { getRouteApi } from "@tanstack/react-router";
import { useState } from "react";
import type { ModelInUse, ModelPrice } from "../../api/platform";
import { useApi } from "../../api/queries";
import { useMay } from "../../shell/session";
import { Empty } from "../../ui/Empty";
import { compact, cost, count } from "../../ui/format";
import { Icon } from "../../ui/Icon";
import { PageHead } from "../../ui/ListPage";
import { Problem } from "../../ui/Problem";
import { SearchField } from "../../ui/SearchField";
import { Status } from "../../ui/Status";
import { Table } from "../../ui/Table";
import { useSearchParams } from "../../ui/useSearchParams";
import { PriceForm } from "./PriceForm";
import { joinProviders, type PriceDraft, perMillion, toDraft } from "./prices";
import { Recompute } from "./Recompute";

const pricesRoute = getRouteApi("/prices");

const SOURCES = { workspace: "this workspace", file: "operator's file", shipped: "shipped" } as const;

export function PricesPage() {
  const { q } = pricesRoute.useSearch();
  const { bind } = useSearchParams({ q });
  const mayChange = useMay("workspaces:manage");
  const [draft, setDraft] = useState<PriceDraft | null>(null);
  const models = useApi("GET /model-price-map/models", {}, { everyMs: 30_000 });
  const prices = useApi("GET /model-price-map", { query: { q } }, { keep: true });

  const words = (q ?? "").toLowerCase();
  const rows = (models.data ?? []).filter((each) => `${each.name} ${each.provider}`.toLowerCase().includes(words));
  const unpriced = rows.filter((each) => each.price_id === null);

  return (
    <div className="page">
      <PageHead title="Prices">
        {mayChange && (
          <button type="button" className="button main" onClick={() => setDraft(toDraft())}>
            <Icon name="plus" /> New price
          </button>
        )}
      </PageHead>
      <div className="filters">
        <SearchField label="Search models and prices" placeholder="Search models and prices" {...bind("q")} />
        {unpriced.length > 0 && (
          <Status
            tone="bad"
            word={`${unpriced.length} ${unpriced.length === 1 ? "model" : "models"} without a price`}
          />
        )}
      </div>
      {draft && <PriceForm key={draft.key} draft={draft} onClose={() => setDraft(null)} />}
      <section className="card" aria-labelledby="in-use">
        <div className="card-head">
          <h2 id="in-use">Models in use, last 30 days</h2>
        </div>
        {models.error && <Problem error={models.error} retry={() => void models.refetch()} />}
        {models.data?.length === 0 && (
          <Empty title="No model run yet" command="portside prices list --models">
            Models appear here when traces with model runs arrive. Their cost is tokens times the price below.
          </Empty>
        )}
        {rows.length > 0 && <Models rows={rows} mayChange={mayChange} onPrice={(each) => setDraft(toDraft(each))} />}
        {models.data && models.data.length > 0 && rows.length === 0 && (
          <p className="card-body soft">No model matches.</p>
        )}
      </section>
      {mayChange && <Recompute />}
      <section className="card" aria-labelledby="all-prices">
        <div className="card-head">
          <h2 id="all-prices">All prices, USD for a million tokens</h2>
          <span className="soft small">{prices.data ? `${prices.data.length}` : ""}</span>
        </div>
        {prices.error && <Problem error={prices.error} retry={() => void prices.refetch()} />}
        {prices.data?.length === 0 && <p className="card-body soft">No price matches.</p>}
        {prices.data && prices.data.length > 0 && (
          <Prices
            rows={joinProviders(prices.data)}
            mayChange={mayChange}
            onEdit={(each) =>
              setDraft(toDraft(undefined, { ...each, provider: each.provider?.split(", ")[0] ?? null }))
            }
          />
        )}
      </section>
    </div>
  );
}

function Models({
  rows,
  mayChange,
  onPrice,
}: {
  rows: ModelInUse[];
  mayChange: boolean;
  onPrice: (model: ModelInUse) => void;
}) {
  return (
    <Table
      label="Models in use"
      rows={rows}
      getKey={(each) => `${each.provider} ${each.name}`}
      columns={[
        { title: "Model", show: (each) => <code>{each.name}</code> },
        { title: "Provider", show: (each) => each.provider || <span className="soft">unknown</span>, isExtra: true },
        { title: "Runs", show: (each) => count(each.runs), isNumber: true },
        {
          title: "Tokens",
          show: (each) => compact(each.prompt_tokens + each.completion_tokens),
          isNumber: true,
          isExtra: true,
        },
        {
          title: "Cost",
          show: (each) => cost(each.total_cost),
          isNumber: true,
        },
        {
          title: "Price",
          show: (each) =>
            each.price_id !== null ? (
              each.price_name
            ) : mayChange ? (
              <button type="button" className="link" onClick={() => onPrice(each)}>
                Set a price
              </button>
            ) : (
              <Status tone="bad" word="None" />
            ),
        },
      ]}
    />
  );
}

function Prices({
  rows,
  mayChange,
  onEdit,
}: {
  rows: ModelPrice[];
  mayChange: boolean;
  onEdit: (price: ModelPrice) => void;
}) {
  return (
    <Table
      label="All prices"
      rows={rows}
      getKey={(each) => each.id}
      columns={[
        { title: "Name", show: (each) => <span title={each.match_pattern}>{each.name}</span> },
        {
          title: "Provider",
          show: (each) => <span title={each.provider ?? ""}>{each.provider ?? "any"}</span>,
          isExtra: true,
        },
        { title: "Input", show: (each) => perMillion(each.prompt_cost), isNumber: true },
        { title: "Output", show: (each) => perMillion(each.completion_cost), isNumber: true },
        {
          title: "Cache read",
          show: (each) => perMillion(each.prompt_cost_details?.cache_read),
          isNumber: true,
          isExtra: true,
        },
        {
          title: "Cache write",
          show: (each) => perMillion(each.prompt_cost_details?.cache_creation),
          isNumber: true,
          isExtra: true,
        },
        {
          title: "From",
          show: (each) => each.start_time?.slice(0, 10) ?? <span className="soft">always</span>,
          isExtra: true,
        },
        { title: "Source", show: (each) => <span className="soft">{SOURCES[each.source]}</span>, isExtra: true },
        ...(mayChange
          ? [
              {
                title: "Change",
                isActions: true,
                show: (each: ModelPrice) => (
                  <button type="button" className="link" aria-label={`Edit ${each.name}`} onClick={() => onEdit(each)}>
                    {each.source === "workspace" ? "Edit" : "Override"}
                  </button>
                ),
              },
            ]
          : []),
      ]}
    />
  );
}
