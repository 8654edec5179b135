import { type FormEvent, useState } from "react";
import { fieldOf } from "../../api/client";
import type { Chart, ChartSeries, TracerSession } from "../../api/platform";
import { useChange } from "../../api/queries";
import { FormButtons, SelectField, TextField } from "../../ui/Field";
import { Problem } from "../../ui/Problem";
import { GROUPS, METRICS, titleOf } from "./metrics";

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
  const [given, setGiven] = useState({
    title: chart?.title ?? "",
    metric: first?.metric ?? ("total_cost" as ChartSeries["metric"]),
    group: first?.group_by?.attribute ?? "",
    project: first?.filters?.session?.[0] ?? "",
    filter: first?.filters?.filter ?? "",
    type: chart?.chart_type ?? "line",
  });

  const create = useChange("POST /charts/create", onClose);
  const update = useChange("PATCH /charts/{chart_id}", onClose);

  const error = create.error ?? update.error;
  const problem = (name: string) => error?.problems.find((one) => fieldOf(one).endsWith(name))?.msg;

  const save = (event: FormEvent) => {
    event.preventDefault();
    const series: ChartSeries = {
      ...(first?.id ? { id: first.id } : {}),
      metric: given.metric,
      name: titleOf(given.metric),
      filters: { session: given.project ? [given.project] : null, filter: given.filter || null },
      group_by: given.group ? { attribute: given.group as Attribute, max_groups: 6 } : null,
    };

    const body = {
      title: given.title || titleOf(given.metric),
      chart_type: given.type === "bar" ? ("bar" as const) : ("line" as const),
      series: [series, ...others],
    };

    if (chart) update.mutate({ path: { chart_id: chart.id }, body });
    else create.mutate({ body: { ...body, section_id: section } });
  };

  const set = (changes: Partial<typeof given>) => setGiven((old) => ({ ...old, ...changes }));

  return (
    <form className="card" onSubmit={save} aria-label={chart ? `Change ${chart.title}` : "New chart"}>
      <div className="card-body price-form">
        <TextField
          label="Title"
          spellCheck
          error={problem("title")}
          placeholder={titleOf(given.metric)}
          value={given.title}
          onChange={(title) => set({ title })}
        />
        <SelectField
          label="Metric"
          options={METRICS.map(([name, title]) => [name, title] as const)}
          value={given.metric}
          onChange={(metric) => set({ metric })}
        />
        <SelectField label="Group by" options={GROUPS} value={given.group} onChange={(group) => set({ group })} />
        <SelectField
          label="Project"
          options={[["", "All projects"], ...projects.map((each) => [each.id, each.name] as const)]}
          value={given.project}
          onChange={(project) => set({ project })}
        />
        <TextField
          label="Filter"
          hint='For example eq(run_type, "llm")'
          error={problem("filter")}
          className="mono"
          value={given.filter}
          onChange={(filter) => set({ filter })}
        />
        <SelectField
          label="Drawn as"
          options={[
            ["line", "Lines"],
            ["bar", "Bars"],
          ]}
          value={given.type}
          onChange={(type) => set({ type })}
        />
        {error && error.problems.length === 0 && <Problem error={error} />}
        <FormButtons action="Save the chart" isDisabled={create.isPending || update.isPending} onCancel={onClose} />
      </div>
    </form>
  );
}
