// All datasets of the workspace.

import { getRouteApi, Link, useNavigate } from "@tanstack/react-router";
import { useOffsetPages } from "../../api/pages";
import type { Dataset } from "../../api/platform";
import { useMay } from "../../shell/session";
import { Empty } from "../../ui/Empty";
import { count } from "../../ui/format";
import type { Column } from "../../ui/List";
import { ListPage, NewLink, PageHead } from "../../ui/ListPage";
import { PagedList } from "../../ui/PagedList";
import { SearchField } from "../../ui/SearchField";
import { Ago } from "../../ui/Time";
import { useSearchParams } from "../../ui/useSearchParams";

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
  const navigate = useNavigate();
  const { q } = datasetsRoute.useSearch();
  const { bind } = useSearchParams({ q });
  const mayCreate = useMay("datasets:create");

  const datasets = useOffsetPages(
    "GET /datasets",
    (slice) => ({ query: { sort_by: "modified_at", ...slice, ...(q ? { name_contains: q } : {}) } }),
    (page) => page,
    { keep: true },
  );

  return (
    <ListPage
      head={<PageHead title="Datasets">{mayCreate && <NewLink to="/datasets/new">New dataset</NewLink>}</PageHead>}
      filters={<SearchField label="Search datasets by name" placeholder="Search by name" {...bind("q")} />}
    >
      <PagedList
        listing={datasets}
        label="Datasets"
        columns={COLUMNS}
        getKey={(each) => each.id}
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
    </ListPage>
  );
}
