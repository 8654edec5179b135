import { getRouteApi, Link, useNavigate } from "@tanstack/react-router";
import { useOffsetPages } from "../../api/pages";
import type { Prompt } from "../../api/platform";
import { useKey } from "../../shell/keys";
import { useMay } from "../../shell/session";
import { Empty } from "../../ui/Empty";
import { FilterSelect } from "../../ui/FilterSelect";
import { count } from "../../ui/format";
import { Icon } from "../../ui/Icon";
import type { Column } from "../../ui/List";
import { PagedList } from "../../ui/PagedList";
import { SearchField } from "../../ui/SearchField";
import { Ago } from "../../ui/Time";

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
  const { q, archived } = promptsRoute.useSearch();
  const navigate = useNavigate();
  const mayCreate = useMay("prompts:create");

  useKey("c", () => mayCreate && void navigate({ to: "/prompts/new" }));
  const found = useOffsetPages(
    "GET /repos",
    (slice) => ({ query: { ...slice, is_archived: archived ? "true" : "false", ...(q ? { query: q } : {}) } }),
    (page) => page.repos,
    { keep: true },
  );

  const filter = (changes: { q?: string | undefined; archived?: string | undefined }) =>
    void navigate({ to: "/prompts", search: (old) => ({ ...old, ...changes }), replace: true });

  return (
    <div className="page full">
      <div className="head">
        <h1>Prompts</h1>
        {mayCreate && (
          <Link to="/prompts/new" className="button main">
            <Icon name="plus" />
            New prompt
          </Link>
        )}
      </div>
      <div className="filters">
        <SearchField
          label="Search prompts"
          placeholder="Search names and texts"
          q={q}
          onSearch={(text) => filter({ q: text })}
        />
        <FilterSelect
          label="Archived"
          all="In use"
          options={[["yes", "Archived"]]}
          value={archived}
          onSelect={(value) => filter({ archived: value })}
        />
      </div>
      <PagedList
        found={found}
        label="Prompts"
        columns={COLUMNS}
        keyOf={(each) => each.id}
        onOpen={(each) => void navigate({ to: "/prompts/$promptName", params: { promptName: each.repo_handle } })}
        empty={
          q || archived ? (
            <Empty title="No prompt matches">
              <button type="button" className="link" onClick={() => filter({ q: undefined, archived: undefined })}>
                Show all prompts
              </button>
            </Empty>
          ) : (
            <Empty title="No prompts yet" command={'Client().push_prompt("my-prompt", object=prompt)'}>
              A prompt is a list of messages with variables, kept with all its versions. Agents pull the one that a tag
              names, so that its text changes without a deployment.{mayCreate && " Press c to write one here, or run:"}
            </Empty>
          )
        }
      />
    </div>
  );
}
