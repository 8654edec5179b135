import { type FormEvent, useState } from "react";
import type { ChartWindow, Section, Chart as StoredChart, TracerSession } from "../../api/platform";
import { useApi, useChange } from "../../api/queries";
import { useMay } from "../../shell/session";
import { Confirm } from "../../ui/Confirm";
import { Icon } from "../../ui/Icon";
import { Problem } from "../../ui/Problem";
import { Chart } from "./Chart";
import { ChartForm } from "./ChartForm";
import { getUnit, toData } from "./metrics";

interface Deletion {
  kind: "chart" | "section";
  id: string;
  title: string;
}

// Charts that people of this workspace made, in sections.
export function Sections({ view, projects }: { view: ChartWindow; projects: TracerSession[] }) {
  const sections = useApi(
    "POST /charts",
    { body: view },
    { keep: true, everyMs: 60_000, enabled: useMay("charts:read") },
  );

  const mayCreate = useMay("charts:create");
  const mayDelete = useMay("charts:delete");
  const [form, setForm] = useState<{ section: string | null; chart: StoredChart | null } | null>(null);
  const [deletion, setDeletion] = useState<Deletion | null>(null);
  const [title, setTitle] = useState("");
  const createSection = useChange("POST /charts/section", () => setTitle(""));

  if (sections.error && !sections.data) {
    return <Problem error={sections.error} retry={() => void sections.refetch()} />;
  }

  const list = sections.data?.sections ?? [];

  const add = (event: FormEvent) => {
    event.preventDefault();
    if (title.trim()) createSection.mutate({ body: { title: title.trim() } });
  };

  return (
    <>
      {list.map((section) => (
        <section key={section.id} className="stack" aria-label={section.title}>
          <div className="section-head">
            <SectionTitle section={section} mayChange={mayCreate} />
            {mayCreate && (
              <button
                type="button"
                className="button"
                aria-label={`New chart in ${section.title}`}
                onClick={() => setForm({ section: section.id, chart: null })}
              >
                <Icon name="plus" /> New chart
              </button>
            )}
            {mayDelete && (
              <button
                type="button"
                className="link"
                onClick={() => setDeletion({ kind: "section", id: section.id, title: section.title })}
              >
                Delete the section
              </button>
            )}
          </div>
          {form?.section === section.id && (
            <ChartForm
              key={form.chart?.id ?? "new"}
              section={section.id}
              chart={form.chart}
              projects={projects}
              onClose={() => setForm(null)}
            />
          )}
          {section.charts?.length === 0 && <p className="soft">This section has no charts.</p>}
          <div className="charts">
            {(section.charts ?? []).map((chart) => (
              <Chart
                key={chart.id}
                title={chart.title}
                unit={getUnit(chart.series[0]?.metric ?? "run_count")}
                isBar={chart.chart_type === "bar"}
                data={toData(chart.data ?? [], chart.series)}
                actions={
                  (mayCreate || mayDelete) && (
                    <span className="row">
                      {mayCreate && (
                        <button
                          type="button"
                          className="link"
                          aria-label={`Edit ${chart.title}`}
                          onClick={() => setForm({ section: section.id, chart })}
                        >
                          Edit
                        </button>
                      )}
                      {mayDelete && (
                        <button
                          type="button"
                          className="link"
                          aria-label={`Delete ${chart.title}`}
                          onClick={() => setDeletion({ kind: "chart", id: chart.id, title: chart.title })}
                        >
                          Delete
                        </button>
                      )}
                    </span>
                  )
                }
              />
            ))}
          </div>
        </section>
      ))}
      {mayCreate && (
        <form className="row" onSubmit={add}>
          <input
            aria-label="Title of a new section"
            placeholder="Title of a new section"
            value={title}
            onChange={(event) => setTitle(event.target.value)}
          />
          <button type="submit" className="button" disabled={!title.trim() || createSection.isPending}>
            Add a section
          </button>
          {list.length === 0 && (
            <span className="soft small">for charts of your own: any metric, filter and group</span>
          )}
        </form>
      )}
      {createSection.error && <Problem error={createSection.error} />}
      {deletion && <Delete deletion={deletion} onClose={() => setDeletion(null)} />}
    </>
  );
}

function SectionTitle({ section, mayChange }: { section: Section; mayChange: boolean }) {
  const [draft, setDraft] = useState<string | null>(null);
  const change = useChange("PATCH /charts/section/{section_id}", () => setDraft(null));

  if (draft === null) {
    return (
      <>
        <h2>{section.title}</h2>
        {mayChange && (
          <button
            type="button"
            className="link"
            aria-label={`Rename ${section.title}`}
            onClick={() => setDraft(section.title)}
          >
            Rename
          </button>
        )}
      </>
    );
  }

  return (
    <form
      className="row"
      onSubmit={(event) => {
        event.preventDefault();
        change.mutate({ path: { section_id: section.id }, body: { title: draft } });
      }}
    >
      <input aria-label="Title of the section" value={draft} onChange={(event) => setDraft(event.target.value)} />
      <button type="submit" className="button" disabled={!draft.trim() || change.isPending}>
        Save
      </button>
      {change.error && <Problem error={change.error} />}
    </form>
  );
}

function Delete({ deletion, onClose }: { deletion: Deletion; onClose: () => void }) {
  const chart = useChange("DELETE /charts/{chart_id}", onClose);
  const section = useChange("DELETE /charts/section/{section_id}", onClose);

  return (
    <Confirm
      title={`Delete ${deletion.title}?`}
      action="Delete"
      cancel="Keep it"
      change={deletion.kind === "chart" ? chart : section}
      onConfirm={() =>
        deletion.kind === "chart"
          ? chart.mutate({ path: { chart_id: deletion.id } })
          : section.mutate({ path: { section_id: deletion.id } })
      }
      onClose={onClose}
    >
      <p>
        {deletion.kind === "section"
          ? "The section and all charts in it are deleted for everybody in this workspace. Traces stay."
          : "The chart is deleted for everybody in this workspace. Traces stay."}
      </p>
    </Confirm>
  );
}
