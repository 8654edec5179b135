import { useEffect, useState } from "react";
import { useAgentApi, useAgentChange } from "../../api/agentQueries";
import type { Cron } from "../../api/agentServer";
import { problemAt } from "../../api/client";
import { SelectField, TextField } from "../../ui/Field";
import { Form, FormButtons } from "../../ui/Form";
import { JsonInput } from "../../ui/SchemaForm";
import { SidePanel } from "../../ui/SidePanel";
import { NextTimes } from "./NextTimes";

interface Props {
  deploymentId: string;
  assistants: readonly (readonly [string, string])[];
  // The cron to change; without it a new one is made.
  cron?: Cron;
  onClose: () => void;
  onSaved: (changes: Record<string, string | undefined>) => void;
}

const PAUSE_MS = 300;
const OWN_ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone;

export function CronForm({ deploymentId, assistants, cron, onClose, onSaved }: Props) {
  const [assistant, setAssistant] = useState(cron?.assistant_id ?? "");
  const [schedule, setSchedule] = useState(cron?.schedule ?? "0 9 * * MON-FRI");
  const [zone, setZone] = useState(cron ? (cron.timezone ?? "UTC") : OWN_ZONE);
  const [thread, setThread] = useState("");
  const [threadEnd, setThreadEnd] = useState<"delete" | "keep">(cron?.on_run_completed ?? "keep");
  const [end, setEnd] = useState(cron?.end_time ?? "");
  const [input, setInput] = useState<unknown>(cron ? (cron.payload.input ?? null) : {});

  const showCron = (saved: Cron) => onSaved({ cron: saved.cron_id, edit: undefined });
  const createFree = useAgentChange(deploymentId, "POST /runs/crons", showCron);
  const createOnThread = useAgentChange(deploymentId, "POST /threads/{thread_id}/runs/crons", showCron);
  const change = useAgentChange(deploymentId, "PATCH /runs/crons/{cron_id}", showCron);

  const preview = usePreview(deploymentId, schedule, zone);

  const submit = () => {
    if (input === undefined) return;
    const assistantId = assistant || assistants[0]?.[0] || "";

    const body = { assistant_id: assistantId, schedule, timezone: zone || "UTC", input };
    if (cron) {
      const completion = cron.thread_id ? {} : { on_run_completed: threadEnd };
      change.mutate({ path: { cron_id: cron.cron_id }, body: { ...body, ...completion, end_time: end || null } });
    } else if (thread) {
      createOnThread.mutate({ path: { thread_id: thread }, body: { ...body, ...(end ? { end_time: end } : {}) } });
    } else {
      createFree.mutate({ body: { ...body, on_run_completed: threadEnd, ...(end ? { end_time: end } : {}) } });
    }
  };

  return (
    <SidePanel title={cron ? `Edit cron ${cron.cron_id.slice(-8)}` : "New cron"} onClose={onClose}>
      <Form change={cron ? change : thread ? createOnThread : createFree} onSubmit={submit}>
        <SelectField
          label="Runs the assistant"
          name="assistant_id"
          value={assistant}
          onChange={setAssistant}
          options={assistants}
        />
        <TextField
          label="Schedule"
          name="schedule"
          error={problemAt(preview.error, "schedule")}
          hint="minute hour day month weekday; with six fields seconds come first; or @hourly, @daily, @weekly"
          isRequired
          value={schedule}
          onChange={setSchedule}
        />
        <TextField
          label="Time zone"
          name="timezone"
          error={problemAt(preview.error, "timezone")}
          hint="An IANA name such as Europe/Berlin"
          value={zone}
          onChange={setZone}
        />
        {preview.schedule && (
          <NextTimes deploymentId={deploymentId} schedule={preview.schedule} timezone={preview.zone} />
        )}
        {!cron && (
          <TextField
            label="On the thread"
            name="thread_id"
            hint="The id of a thread; empty for a new one each time"
            value={thread}
            onChange={(text) => setThread(text.trim())}
          />
        )}
        {!(cron?.thread_id ?? thread) && (
          <SelectField
            label="Threads after their run"
            value={threadEnd}
            onChange={setThreadEnd}
            options={[
              ["keep", "kept, with their runs"],
              ["delete", "deleted"],
            ]}
          />
        )}
        <JsonInput label="Input" hint="JSON, the input of each run" rows={4} value={input} onChange={setInput} />
        <TextField
          label="Ends"
          name="end_time"
          hint="A time such as 2030-01-31T18:00:00+01:00; empty for never"
          value={end}
          onChange={setEnd}
        />
        <FormButtons action={cron ? "Save" : "Create"} isDisabled={input === undefined} onCancel={onClose} />
      </Form>
    </SidePanel>
  );
}

// Checks the schedule with the server, after a pause in typing.
function usePreview(deploymentId: string, schedule: string, zone: string) {
  const [settled, setSettled] = useState({ schedule, zone });
  useEffect(() => {
    const timer = setTimeout(() => setSettled({ schedule, zone }), PAUSE_MS);
    return () => clearTimeout(timer);
  }, [schedule, zone]);

  const body = { schedule: settled.schedule, ...(settled.zone ? { timezone: settled.zone } : {}) };
  const { error, data } = useAgentApi(deploymentId, "POST /runs/crons/preview", { body });

  return {
    schedule: data ? settled.schedule : null,
    zone: settled.zone || null,
    error,
  };
}
