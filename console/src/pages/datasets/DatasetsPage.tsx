// All datasets of the workspace.

import { getRouteApi, Link, useNavigate } from "@tanstack/react-router";
import { useOffsetPages } from "../../api/pages";
import type { Dataset } from "../../api/platform";
import { useKey } from "../../shell/keys";
import { useMay } from "../../shell/session";
import { Empty } from "../../ui/Empty";
import { count } from "../../ui/format";
import { Icon } from "../../ui/Icon";
import type { Column } from "../../ui/List";
import { PagedList } from "../../ui/PagedList";
import { SearchField } from "../../ui/SearchField";
import { Ago } from "../../ui/Time";

const datasetsRoute = getRouteApi("/datasets");

const COLUMNS: Column<Dataset>[] = [
  {
    title: "Name",
    width: "minmax(160px, 1.2fr)",
    show: (each) => (
      <Link to="/datasets/$datasetId" params={{ datasetId: each.id }} search={{}} className="name">
        {each.name}
      </Link>
    ),
  },
  {
    title: "Description",
    width: "minmax(160px, 2fr)",
    show: (each) => <span className="soft">{each.description}</span>,
    isExtra: true,
  },
  { title: "Examples", width: "80px", show: (each) => count(each.example_count), isNumber: true },
  { title: "Experiments", width: "92px", show: (each) => count(each.session_count), isNumber: true, isExtra: true },
  { title: "Changed", width: "72px", show: (each) => <Ago at={each.modified_at} />, isNumber: true },
];

export function DatasetsPage() {
  const { q } = datasetsRoute.useSearch();
  const navigate = useNavigate();
  const mayCreate = useMay("datasets:create");

  useKey("c", () => mayCreate && void navigate({ to: "/datasets/new" }));
  const found = useOffsetPages(
    "GET /datasets",
    (slice) => ({ query: { sort_by: "modified_at", ...slice, ...(q ? { name_contains: q } : {}) } }),
    (datasets) => datasets,
    { keep: true },
  );

  return (
    <div className="page full">
      <div className="head">
        <h1>Datasets</h1>
        {mayCreate && (
          <Link to="/datasets/new" className="button main">
            <Icon name="plus" />
            New dataset
          </Link>
        )}
      </div>
      <div className="filters">
        <SearchField
          label="Search datasets by name"
          placeholder="Search by name"
          q={q}
          onSearch={(text) => void navigate({ to: "/datasets", search: (old) => ({ ...old, q: text }), replace: true })}
        />
      </div>
      <PagedList
        found={found}
        label="Datasets"
        columns={COLUMNS}
        keyOf={(each) => each.id}
        onOpen={(each) => void navigate({ to: "/datasets/$datasetId", params: { datasetId: each.id }, search: {} })}
        empty={
          q ? (
            <Empty title="No dataset has this name">Try a part of it.</Empty>
          ) : (
            <Empty
              title="No datasets yet"
              command={`python -c "import langsmith; langsmith.Client(api_url='${location.origin}').create_dataset('first')"`}
            >
              A dataset holds examples: inputs, with the outputs that they should have. Experiments run an agent on them
              and compare.{mayCreate && " Press c to upload a file, mark traces and add them, or run:"}
            </Empty>
          )
        }
      />
    </div>
  );
}
