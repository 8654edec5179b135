import { useState } from "react";
import type { RuleInForce, Silence } from "../../api/platform";
import { useApi, useChange } from "../../api/queries";
import { SelectField, TextField } from "../../ui/Field";
import { DialogForm, FormButtons } from "../../ui/Form";
import { Problem } from "../../ui/Problem";
import { Status } from "../../ui/Status";
import { Table } from "../../ui/Table";
import { Exact } from "../../ui/Time";

const HOURS = [
  ["1", "for an hour"],
  ["8", "for eight hours"],
  ["24", "for a day"],
  ["168", "for a week"],
] as const;

// The thresholds of the alert rules, and the silences that stop a rule's messages for a while.
export function RulesTab() {
  const rules = useApi("GET /alerts/rules", {});
  const silences = useApi("GET /alerts/silences", {}, { everyMs: 30_000 });
  const [ruleToChange, setRuleToChange] = useState<RuleInForce | null>(null);
  const [ruleToSilence, setRuleToSilence] = useState<RuleInForce | null>(null);

  if (rules.error && !rules.data) return <Problem error={rules.error} retry={() => void rules.refetch()} />;

  return (
    <>
      <section className="card" aria-label="Rules">
        <Table
          label="Rules"
          rows={rules.data ?? []}
          getKey={(each) => each.name}
          isStacked
          columns={[
            {
              title: "Rule",
              show: (each) => (
                <>
                  <code>{each.name}</code>
                  <div className="soft small">{each.summary}</div>
                </>
              ),
            },
            {
              title: "Threshold",
              show: (each) => (
                <>
                  {getThreshold(each)}
                  {!each.is_default && <span className="tag">changed</span>}
                </>
              ),
            },
            {
              title: "State",
              show: (each) => (each.is_enabled ? <Status tone="good" word="On" /> : <Status tone="idle" word="Off" />),
            },
            {
              title: "Silence",
              show: (each) => (
                <Silences
                  rule={each}
                  silences={silences.data?.filter(({ rule }) => rule === each.name) ?? []}
                  onAdd={() => setRuleToSilence(each)}
                />
              ),
            },
            {
              title: "Actions",
              isActions: true,
              show: (each) => (
                <button type="button" className="button" onClick={() => setRuleToChange(each)}>
                  Change<span className="hidden"> {each.name}</span>
                </button>
              ),
            },
          ]}
        />
      </section>
      {ruleToChange && <ChangeRule of={ruleToChange} onClose={() => setRuleToChange(null)} />}
      {ruleToSilence && <AddSilence rule={ruleToSilence.name} onClose={() => setRuleToSilence(null)} />}
    </>
  );
}

function getThreshold(rule: RuleInForce): string {
  const duration = rule.for_s > 0 ? `for ${rule.for_s} s` : "at once";
  return rule.unit ? `${rule.is_below ? "at most" : "at least"} ${rule.threshold} ${rule.unit}, ${duration}` : duration;
}

function Silences({ rule, silences, onAdd }: { rule: RuleInForce; silences: Silence[]; onAdd: () => void }) {
  const end = useChange("DELETE /alerts/silences/{silence_id}");

  if (silences.length === 0) {
    return (
      <button type="button" className="link" aria-label={`Silence ${rule.name}`} onClick={onAdd}>
        Silence
      </button>
    );
  }

  return (
    <>
      {silences.map((each) => (
        <div key={each.id} title={each.comment}>
          until <Exact at={each.until} />{" "}
          <button
            type="button"
            className="link"
            aria-label={`End the silence of ${rule.name}`}
            disabled={end.isPending}
            onClick={() => end.mutate({ path: { silence_id: each.id } })}
          >
            End
          </button>
        </div>
      ))}
      {end.error && <Problem error={end.error} />}
    </>
  );
}

function ChangeRule({ of: rule, onClose }: { of: RuleInForce; onClose: () => void }) {
  const [draft, setDraft] = useState({
    threshold: String(rule.threshold),
    seconds: String(rule.for_s),
    state: rule.is_enabled ? "on" : "off",
  });

  const set = (changes: Partial<typeof draft>) => setDraft((old) => ({ ...old, ...changes }));
  const change = useChange("PATCH /alerts/rules/{name}", onClose);

  const isValid = [draft.threshold, draft.seconds].every((text) => text.trim() !== "" && Number(text) >= 0);

  const save = () => {
    const body = {
      threshold: Number(draft.threshold),
      for_s: Number(draft.seconds),
      is_enabled: draft.state === "on",
    };

    change.mutate({ path: { name: rule.name }, body });
  };

  return (
    <DialogForm title={`Change ${rule.name}`} change={change} onSubmit={save} onClose={onClose}>
      <p>{rule.summary}</p>
      {rule.unit && (
        <TextField
          label={`Threshold in ${rule.unit}`}
          inputMode="decimal"
          value={draft.threshold}
          onChange={(text) => set({ threshold: text })}
        />
      )}
      <TextField
        label="Seconds that it must hold"
        inputMode="numeric"
        value={draft.seconds}
        onChange={(text) => set({ seconds: text })}
      />
      <SelectField
        label="State"
        value={draft.state}
        onChange={(state) => set({ state })}
        options={[
          ["on", "On"],
          ["off", "Off"],
        ]}
      />
      <FormButtons action="Save" isDisabled={!isValid} onCancel={onClose} />
    </DialogForm>
  );
}

function AddSilence({ rule, onClose }: { rule: string; onClose: () => void }) {
  const [hours, setHours] = useState<(typeof HOURS)[number][0]>("8");
  const [comment, setComment] = useState("");
  const add = useChange("POST /alerts/silences", onClose);

  const silence = () => add.mutate({ body: { rule, hours: Number(hours), comment: comment.trim() } });

  return (
    <DialogForm title={`Silence ${rule}`} change={add} onSubmit={silence} onClose={onClose}>
      <p>No messages are sent. An alert that still fires afterwards is sent then.</p>
      <SelectField label="How long" value={hours} onChange={setHours} options={HOURS} />
      <TextField label="Why" value={comment} onChange={setComment} />
      <FormButtons action="Silence" onCancel={onClose} />
    </DialogForm>
  );
}
