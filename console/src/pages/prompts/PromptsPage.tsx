import { getRouteApi, Link, useNavigate } from "@tanstack/react-router";
import { useOffsetPages } from "../../api/pages";
import type { Prompt } from "../../api/platform";
import { useMay } from "../../shell/session";
import { Empty, NoMatch } from "../../ui/Empty";
import { FilterSelect } from "../../ui/FilterSelect";
import { count } from "../../ui/format";
import type { Column } from "../../ui/List";
import { ListPage, NewLink, PageHead } from "../../ui/ListPage";
import { PagedList } from "../../ui/PagedList";
import { SearchField } from "../../ui/SearchField";
import { Ago } from "../../ui/Time";
import { useSearchParams } from "../../ui/useSearchParams";

const promptsRoute = getRouteApi("/prompts");

const COLUMNS: Column<Prompt>[] = [
  {
    title: "Name",
    width: "minmax(160px, 1.2fr)",
    show: (each) => (
      <Link to="/prompts/$promptName" params={{ promptName: each.repo_handle }} className="name">
        {each.repo_handle}
      </Link>
    ),
  },
  {
    title: "Description",
    width: "minmax(160px, 2fr)",
    show: (each) => <span title={each.description}>{each.description}</span>,
    isExtra: true,
  },
  {
    title: "Labels",
    width: "minmax(100px, 1fr)",
    show: (each) => (
      <span className="labels">
        {each.is_public && <span className="label">public</span>}
        {each.is_archived && <span className="label">archived</span>}
        {each.tags.map((tag) => (
          <span key={tag} className="label">
            {tag}
          </span>
        ))}
      </span>
    ),
    isExtra: true,
  },
  { title: "Commits", width: "64px", show: (each) => count(each.num_commits), isNumber: true },
  { title: "Pulls", width: "64px", show: (each) => count(each.num_downloads), isNumber: true, isExtra: true },
  { title: "Changed", width: "72px", show: (each) => <Ago at={each.updated_at} />, isNumber: true },
];

export function PromptsPage() {
  const navigate = useNavigate();
  const { q, archived } = promptsRoute.useSearch();
  const { replace, bind } = useSearchParams({ q, archived });
  const mayCreate = useMay("prompts:create");

  const prompts = useOffsetPages(
    "GET /repos",
    (slice) => ({ query: { ...slice, is_archived: archived ? "true" : "false", ...(q ? { query: q } : {}) } }),
    (page) => page.repos,
    { keep: true },
  );

  return (
    <ListPage
      head={<PageHead title="Prompts">{mayCreate && <NewLink to="/prompts/new">New prompt</NewLink>}</PageHead>}
      filters={
        <>
          <SearchField label="Search prompts" placeholder="Search names and texts" {...bind("q")} />
          <FilterSelect label="Archived" all="In use" options={[["yes", "Archived"]]} {...bind("archived")} />
        </>
      }
    >
      <PagedList
        listing={prompts}
        label="Prompts"
        columns={COLUMNS}
        getKey={(each) => each.id}
        onOpen={(each) => void navigate({ to: "/prompts/$promptName", params: { promptName: each.repo_handle } })}
        empty={
          q || archived ? (
            <NoMatch
              title="No prompt matches"
              clear="Show all prompts"
              onClear={() => replace({ q: undefined, archived: undefined })}
            />
          ) : (
            <Empty title="No prompts yet" command={'Client().push_prompt("my-prompt", object=prompt)'}>
              A prompt is a list of messages with variables, kept with all its versions. Agents pull the one that a tag
              names, so that its text changes without a deployment.{mayCreate && " Press c to write one here, or run:"}
            </Empty>
          )
        }
      />
    </ListPage>
  );
}
