// The examples of a dataset at a version, and one of them next to the list.

import { getRouteApi } from "@tanstack/react-router";
import { useMemo, useState } from "react";
import type { ApiError } from "../../api/client";
import { useOffsetPages } from "../../api/pages";
import type { Example } from "../../api/platform";
import { useApi, useChange } from "../../api/queries";
import { useKey } from "../../shell/keys";
import { useMay } from "../../shell/session";
import { Empty, NoMatch } from "../../ui/Empty";
import { FilterSelect } from "../../ui/FilterSelect";
import { Icon } from "../../ui/Icon";
import type { Column } from "../../ui/List";
import { PagedList } from "../../ui/PagedList";
import { Problem } from "../../ui/Problem";
import { SearchField } from "../../ui/SearchField";
import { SidePanel } from "../../ui/SidePanel";
import { Ago } from "../../ui/Time";
import { useMarked } from "../../ui/useMarked";
import { useSearchParams } from "../../ui/useSearchParams";
import { quote } from "../traces/filters";
import { previewText } from "../traces/runs";
import { ExampleForm, ExampleView } from "./ExampleForm";
import { getSplits, versionName } from "./example";

const datasetRoute = getRouteApi("/datasets/$datasetId");

const NEW = "new";
const SELECT = ["inputs_preview", "outputs_preview", "metadata", "modified_at"];

export function Examples({ datasetId }: { datasetId: string }) {
  const search = datasetRoute.useSearch();
  const { as_of: asOf, example: chosen } = search;
  const { replace } = useSearchParams(search);
  const mayUpdate = useMay("datasets:update") && !asOf;
  const { marked, toggle, clear, column } = useMarked(JSON.stringify([search.split, search.q]), getId, getName);

  const examples = useExamples(datasetId, asOf, search.split, search.q);
  const columns = useMemo(() => (mayUpdate ? [column, ...COLUMNS] : COLUMNS), [mayUpdate, column]);

  useKey("c", () => mayUpdate && replace({ example: NEW }));
  const isFiltered = Boolean(search.split || search.q);

  return (
    <>
      <Tools datasetId={datasetId} mayUpdate={mayUpdate} onAdd={() => replace({ example: NEW })} />
      {marked.size > 0 && <MarkedExamples datasetId={datasetId} ids={[...marked]} onDone={clear} />}
      <div className={chosen ? "with-panel open" : "with-panel"}>
        <div className="stack panel-list">
          <PagedList
            listing={examples}
            label="Examples"
            columns={columns}
            getKey={getId}
            onOpen={(example) => replace({ example: example.id })}
            onMark={mayUpdate ? toggle : undefined}
            empty={
              isFiltered ? (
                <NoMatch
                  title="No example matches"
                  clear="Show all examples"
                  onClear={() => replace({ split: undefined, q: undefined })}
                />
              ) : (
                <Empty title="No examples yet">
                  {mayUpdate && "Press c to write one, "}mark traces and add them to this dataset, or create examples
                  with the client.
                </Empty>
              )
            }
          />
        </div>
        {chosen === NEW && mayUpdate && (
          <SidePanel title="New example" onClose={() => replace({ example: undefined })}>
            <ExampleForm datasetId={datasetId} onDone={() => replace({ example: undefined })} />
          </SidePanel>
        )}
        {chosen && chosen !== NEW && (
          <SidePanel title={`Example ${chosen.slice(-8)}`} onClose={() => replace({ example: undefined })}>
            <ExampleView
              key={chosen}
              exampleId={chosen}
              asOf={asOf}
              mayUpdate={mayUpdate}
              onGone={() => replace({ example: undefined })}
            />
          </SidePanel>
        )}
      </div>
    </>
  );
}

function useExamples(datasetId: string, asOf: string | undefined, split: string | undefined, q: string | undefined) {
  return useOffsetPages(
    "GET /examples",
    (slice) => ({
      query: {
        dataset: datasetId,
        select: SELECT,
        exclude_default_fields: true,
        ...slice,
        ...(asOf ? { as_of: asOf } : {}),
        ...(split ? { splits: [split] } : {}),
        ...(q ? { filter: `search(${quote(q)})` } : {}),
      },
    }),
    (examples) => examples,
    { keep: true },
  );
}

function getId(example: Example): string {
  return example.id;
}

function getName(example: Example): string {
  return `example ${example.id.slice(-8)}`;
}

const COLUMNS: Column<Example>[] = [
  {
    title: "Input",
    width: "minmax(140px, 1fr)",
    show: (example) => <span title={example.inputs_preview}>{previewText(example.inputs_preview ?? null)}</span>,
  },
  {
    title: "Reference output",
    width: "minmax(140px, 1fr)",
    show: (example) => (
      <span title={example.outputs_preview ?? ""}>{previewText(example.outputs_preview ?? null)}</span>
    ),
    isExtra: true,
  },
  { title: "Split", width: "minmax(64px, 120px)", show: (example) => getSplits(example).join(", ") },
  {
    title: "Changed",
    width: "72px",
    show: (example) => (example.modified_at ? <Ago at={example.modified_at} /> : null),
    isNumber: true,
  },
];

interface ToolsProps {
  datasetId: string;
  mayUpdate: boolean;
  onAdd: () => void;
}

function Tools({ datasetId, mayUpdate, onAdd }: ToolsProps) {
  const search = datasetRoute.useSearch();
  const { bind } = useSearchParams(search);
  const asOf = search.as_of;

  const path = { dataset_id: datasetId };
  const versions = useApi("GET /datasets/{dataset_id}/versions", { path, query: { limit: 100 } }).data ?? [];

  const splits =
    useApi("GET /datasets/{dataset_id}/splits", { path, query: asOf ? { as_of: asOf } : {} }, { keep: true }).data ??
    [];
  const isListed = versions.some((each) => each.as_of === asOf || (asOf !== undefined && each.tags.includes(asOf)));

  return (
    <div className="filters">
      <SearchField label="Search in inputs and outputs" placeholder="Search" {...bind("q")} />
      <FilterSelect label="Split" all="Every split" options={splits.map((each) => [each, each])} {...bind("split")} />
      <FilterSelect
        label="Version"
        all="Latest version"
        options={[
          ...(asOf && !isListed ? [[asOf, asOf] as const] : []),
          ...versions.map((each) => [each.as_of, versionName(each)] as const),
        ]}
        {...bind("as_of")}
      />
      {asOf && <span className="soft">An earlier version cannot be changed.</span>}
      {mayUpdate && (
        <button type="button" className="button" onClick={onAdd}>
          <Icon name="plus" />
          Add example
        </button>
      )}
    </div>
  );
}

function MarkedExamples({ datasetId, ids, onDone }: { datasetId: string; ids: string[]; onDone: () => void }) {
  const [split, setSplit] = useState("");
  const move = useChange("PUT /datasets/{dataset_id}/splits", onDone);
  const remove = useChange("DELETE /examples", onDone);

  const path = { dataset_id: datasetId };
  const name = split.trim();

  return (
    <div className="actions card">
      <span className="number">
        {ids.length} {ids.length === 1 ? "example" : "examples"} marked
      </span>
      <form
        className="row"
        onSubmit={(event) => {
          event.preventDefault();
          if (name) move.mutate({ path, body: { split_name: name, examples: ids } });
        }}
      >
        <input
          className="short"
          aria-label="Name of the split"
          placeholder="split"
          value={split}
          onChange={(event) => setSplit(event.target.value)}
        />
        <button type="submit" className="button" disabled={!name || move.isPending}>
          Add to the split
        </button>
        <button
          type="button"
          className="button"
          disabled={!name || move.isPending}
          onClick={() => move.mutate({ path, body: { split_name: name, examples: ids, remove: true } })}
        >
          Remove from it
        </button>
      </form>
      <button
        type="button"
        className="button danger"
        disabled={remove.isPending}
        title="Earlier versions keep them"
        onClick={() => remove.mutate({ query: { example_ids: ids } })}
      >
        <Icon name="trash" />
        Delete
      </button>
      {(move.error ?? remove.error) && <Problem error={(move.error ?? remove.error) as ApiError} />}
      <button type="button" className="copy" aria-label="Close the actions" onClick={onDone}>
        <Icon name="close" />
      </button>
    </div>
  );
}
