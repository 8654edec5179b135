import { useState } from "react";
import type { Finding } from "../../api/platform";
import { useApi } from "../../api/queries";
import { useMay } from "../../shell/session";
import { Empty } from "../../ui/Empty";
import { Problem } from "../../ui/Problem";
import { Status } from "../../ui/Status";
import { Table } from "../../ui/Table";

const LEVELS = { fault: ["bad", "Fault"], warning: ["wait", "Warning"], ok: ["good", "Passed"] } as const;
const ORDER = ["fault", "warning", "ok"];

// What is wrong with the installation, and what to do about it.
export function DoctorTab() {
  const mayManage = useMay("organization:manage");
  const [showsAll, setShowsAll] = useState(false);
  const doctor = useApi("GET /system/doctor", {}, { enabled: mayManage });

  if (!mayManage) {
    return <Empty title="You may not examine the platform">Admins and operators of the organization may.</Empty>;
  }
  if (doctor.error) return <Problem error={doctor.error} retry={() => void doctor.refetch()} />;
  if (!doctor.data) return <p className="soft">Examining…</p>;
  const { faults, warnings, findings } = doctor.data;
  const rows = findings
    .filter((each) => showsAll || each.level !== "ok")
    .sort((one, other) => ORDER.indexOf(one.level) - ORDER.indexOf(other.level));

  return (
    <section className="card" aria-label="Findings">
      <h2>Doctor</h2>
      <div className="card-body stack">
        <p role="status">
          {faults + warnings === 0 ? (
            <Status tone="good" word={`All ${findings.length} checks passed`} />
          ) : (
            <Status tone={faults ? "bad" : "wait"} word={`${count(faults, "fault")}, ${count(warnings, "warning")}`} />
          )}
        </p>
        <div className="row">
          <button type="button" className="button" disabled={doctor.isFetching} onClick={() => void doctor.refetch()}>
            {doctor.isFetching ? "Examining…" : "Examine again"}
          </button>
          <label className="row">
            <input type="checkbox" checked={showsAll} onChange={(event) => setShowsAll(event.target.checked)} />
            Show passed checks too
          </label>
        </div>
        <p className="soft small">
          “portside doctor” on the machine examines the package index of builds too, and works while the platform is
          down.
        </p>
      </div>
      {rows.length > 0 && (
        <Table
          label="Findings"
          rows={rows.map((finding, number): [number, Finding] => [number, finding])}
          getKey={([number]) => String(number)}
          isStacked
          columns={[
            { title: "Part", show: ([, each]) => each.check },
            { title: "State", show: ([, each]) => <Level of={each.level} /> },
            { title: "What was found", show: ([, each]) => each.message },
            { title: "What to do", show: ([, each]) => each.do || "–" },
          ]}
        />
      )}
    </section>
  );
}

function Level({ of }: { of: Finding["level"] }) {
  const [tone, word] = LEVELS[of];
  return <Status tone={tone} word={word} />;
}

function count(number: number, of: string) {
  return `${number} ${of}${number === 1 ? "" : "s"}`;
}
