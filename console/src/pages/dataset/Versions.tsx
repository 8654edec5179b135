// The versions of a dataset: every change made one. Tags name some; two of them can be compared.

import { getRouteApi, Link, useNavigate } from "@tanstack/react-router";
import { type FormEvent, useState } from "react";
import { useOffsetPages } from "../../api/pages";
import type { Version } from "../../api/platform";
import { useApi, useChange } from "../../api/queries";
import { useMay } from "../../shell/session";
import { Empty } from "../../ui/Empty";
import { count } from "../../ui/format";
import { isBranch, Json } from "../../ui/Json";
import { Problem } from "../../ui/Problem";
import { Table, type TableColumn } from "../../ui/Table";
import { Ago, Exact } from "../../ui/Time";

const datasetRoute = getRouteApi("/datasets/$datasetId");

const SHOWN = 50;

export function Versions({ datasetId }: { datasetId: string }) {
  const { from, to } = datasetRoute.useSearch();
  const navigate = useNavigate();
  const listing = useOffsetPages(
    "GET /datasets/{dataset_id}/versions",
    (slice) => ({ path: { dataset_id: datasetId }, query: slice }),
    (page) => page,
  );

  const versions = listing.rows;

  const compare = (changes: { from?: string; to?: string }) =>
    void navigate({
      to: "/datasets/$datasetId",
      params: { datasetId },
      search: (old) => ({ ...old, ...changes }),
      replace: true,
    });

  const sideColumn = (side: "from" | "to", title: string): TableColumn<Version> => ({
    title,
    show: (version) => (
      <input
        type="radio"
        name={side}
        aria-label={`${side === "from" ? "From" : "To"} version ${version.number}`}
        checked={(side === "from" ? from : to) === version.as_of}
        onChange={() => compare({ [side]: version.as_of })}
      />
    ),
  });

  if (listing.error) return <Problem error={listing.error} retry={listing.retry} />;
  if (listing.isRead && versions.length === 0) {
    return <Empty title="No version yet">Every change of the examples makes a version that stays readable.</Empty>;
  }

  return (
    <div className="versions">
      <section className="card" aria-label="Versions">
        <Table
          label="Versions"
          rows={versions}
          getKey={(version) => version.as_of}
          columns={[
            {
              title: "Version",
              show: (version) => (
                <>
                  <Link
                    to="/datasets/$datasetId"
                    params={{ datasetId }}
                    search={version === versions[0] ? {} : { as_of: version.as_of }}
                    className="name"
                  >
                    {version.number}
                  </Link>{" "}
                  <span className="soft">
                    <Ago at={version.as_of} />
                    <span className="extra">
                      {" "}
                      · <Exact at={version.as_of} />
                    </span>
                  </span>
                </>
              ),
            },
            {
              title: "Tags",
              show: (version) => <Tags datasetId={datasetId} version={version} />,
            },
            sideColumn("from", "Compare from"),
            sideColumn("to", "to"),
          ]}
        />
        {listing.hasMore && (
          <p className="card-body">
            <button type="button" className="link" disabled={listing.isReadingMore} onClick={listing.loadMore}>
              Older versions
            </button>
          </p>
        )}
      </section>
      {from && to && <Difference datasetId={datasetId} from={from} to={to} />}
    </div>
  );
}

function Tags({ datasetId, version }: { datasetId: string; version: Version }) {
  const mayUpdate = useMay("datasets:update");
  const [tag, setTag] = useState("");
  const [isOpen, setOpen] = useState(false);

  const put = useChange("PUT /datasets/{dataset_id}/tags", () => {
    setTag("");
    setOpen(false);
  });

  const submit = (event: FormEvent) => {
    event.preventDefault();
    put.mutate({ path: { dataset_id: datasetId }, body: { as_of: version.as_of, tag: tag.trim() } });
  };

  return (
    <span className="labels">
      {version.tags.map((each) => (
        <span key={each} className="label">
          {each}
        </span>
      ))}
      {mayUpdate && !isOpen && (
        <button
          type="button"
          className="link"
          aria-label={`Tag version ${version.number}`}
          onClick={() => setOpen(true)}
        >
          Tag
        </button>
      )}
      {isOpen && (
        <form className="row tight" onSubmit={submit}>
          <input className="short" aria-label="Tag" value={tag} onChange={(event) => setTag(event.target.value)} />
          <button type="submit" className="button" disabled={!tag.trim() || put.isPending}>
            Set
          </button>
        </form>
      )}
      {put.error && <span className="bad-text">{put.error.message}</span>}
    </span>
  );
}

function Difference({ datasetId, from, to }: { datasetId: string; from: string; to: string }) {
  const difference = useApi("GET /datasets/{dataset_id}/versions/diff", {
    path: { dataset_id: datasetId },
    query: { from_version: from, to_version: to },
  });

  if (difference.error) return <Problem error={difference.error} />;
  if (!difference.data) return null;
  const {
    examples_added: added = [],
    examples_modified: modified = [],
    examples_removed: removed = [],
  } = difference.data;

  return (
    <section className="card" aria-label="Differences">
      <h2>
        {count(added.length)} added · {count(modified.length)} changed · {count(removed.length)} removed
      </h2>
      <div className="card-body stack">
        {added.length + modified.length + removed.length === 0 && <p className="soft">Both versions are equal.</p>}
        {modified.slice(0, SHOWN).map((id) => (
          <Changed key={id} id={id} word="Changed" from={from} to={to} />
        ))}
        {added.slice(0, SHOWN).map((id) => (
          <Changed key={id} id={id} word="Added" to={to} />
        ))}
        {removed.slice(0, SHOWN).map((id) => (
          <Changed key={id} id={id} word="Removed" from={from} />
        ))}
        {Math.max(added.length, modified.length, removed.length) > SHOWN && (
          <p className="soft">The first {SHOWN} of each are shown; download both versions for all.</p>
        )}
      </div>
    </section>
  );
}

function Changed({ id, word, from, to }: { id: string; word: string; from?: string; to?: string }) {
  const [isOpen, setOpen] = useState(false);

  return (
    <div className="difference">
      <button type="button" className="link" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
        {word} <code>{id.slice(-8)}</code>
      </button>
      {isOpen && (
        <div className="sides">
          {from && <Side id={id} asOf={from} title="Before" />}
          {to && <Side id={id} asOf={to} title="After" />}
        </div>
      )}
    </div>
  );
}

function Side({ id, asOf, title }: { id: string; asOf: string; title: string }) {
  const example = useApi("GET /examples/{example_id}", { path: { example_id: id }, query: { as_of: asOf } });
  const { inputs, outputs, metadata } = example.data ?? {};

  return (
    <section className="value" aria-label={title}>
      <div className="value-head">
        <h3>{title}</h3>
      </div>
      {example.error && <Problem error={example.error} />}
      {isBranch(inputs) && <Json value={{ inputs, outputs, metadata }} name={`${title} ${id.slice(-8)}`} open={3} />}
    </section>
  );
}
