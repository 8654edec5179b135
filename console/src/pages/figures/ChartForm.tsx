import { useState } from "react";
import type { Chart, ChartSeries, TracerSession } from "../../api/platform";
import { useChange } from "../../api/queries";
import { SelectField, TextField } from "../../ui/Field";
import { Form, FormButtons } from "../../ui/Form";
import { GROUPS, getTitle, METRICS } from "./metrics";

type Attribute = "model" | "node" | "name" | "user" | "tag";

// Makes or changes a chart of one metric: for all runs or those of a project, for each group, by a filter.
export function ChartForm({
  section,
  chart,
  projects,
  onClose,
}: {
  section: string;
  chart: Chart | null;
  projects: TracerSession[];
  onClose: () => void;
}) {
  const [first, ...others] = chart?.series ?? [];
  const [draft, setDraft] = useState({
    title: chart?.title ?? "",
    metric: first?.metric ?? ("total_cost" as ChartSeries["metric"]),
    group: first?.group_by?.attribute ?? "",
    project: first?.filters?.session?.[0] ?? "",
    filter: first?.filters?.filter ?? "",
    type: chart?.chart_type ?? "line",
  });

  const create = useChange("POST /charts/create", onClose);
  const update = useChange("PATCH /charts/{chart_id}", onClose);

  const save = () => {
    const series: ChartSeries = {
      ...(first?.id ? { id: first.id } : {}),
      metric: draft.metric,
      name: getTitle(draft.metric),
      filters: { session: draft.project ? [draft.project] : null, filter: draft.filter || null },
      group_by: draft.group ? { attribute: draft.group as Attribute, max_groups: 6 } : null,
    };

    const body = {
      title: draft.title || getTitle(draft.metric),
      chart_type: draft.type === "bar" ? ("bar" as const) : ("line" as const),
      series: [series, ...others],
    };

    if (chart) update.mutate({ path: { chart_id: chart.id }, body });
    else create.mutate({ body: { ...body, section_id: section } });
  };

  const set = (changes: Partial<typeof draft>) => setDraft((old) => ({ ...old, ...changes }));

  return (
    <section className="card">
      <Form
        className="card-body price-form"
        aria-label={chart ? `Change ${chart.title}` : "New chart"}
        change={chart ? update : create}
        onSubmit={save}
      >
        <TextField
          label="Title"
          spellCheck
          name="title"
          placeholder={getTitle(draft.metric)}
          value={draft.title}
          onChange={(title) => set({ title })}
        />
        <SelectField
          label="Metric"
          options={METRICS.map(([name, title]) => [name, title] as const)}
          value={draft.metric}
          onChange={(metric) => set({ metric })}
        />
        <SelectField label="Group by" options={GROUPS} value={draft.group} onChange={(group) => set({ group })} />
        <SelectField
          label="Project"
          options={[["", "All projects"], ...projects.map((each) => [each.id, each.name] as const)]}
          value={draft.project}
          onChange={(project) => set({ project })}
        />
        <TextField
          label="Filter"
          hint='For example eq(run_type, "llm")'
          name="filter"
          className="mono"
          value={draft.filter}
          onChange={(filter) => set({ filter })}
        />
        <SelectField
          label="Drawn as"
          options={[
            ["line", "Lines"],
            ["bar", "Bars"],
          ]}
          value={draft.type}
          onChange={(type) => set({ type })}
        />
        <FormButtons action="Save the chart" onCancel={onClose} />
      </Form>
    </section>
  );
}
