import type { DiskReport, SpaceTaken } from "../../api/platform";
import { useApi } from "../../api/queries";
import { useMay } from "../../shell/session";
import { Empty } from "../../ui/Empty";
import { Fact } from "../../ui/Fact";
import { bytes } from "../../ui/Json";
import { Problem } from "../../ui/Problem";
import { Status } from "../../ui/Status";
import { Table } from "../../ui/Table";

const EVERY_MS = 30_000;
const SHOWN = 100;
const OWN = "the platform";

// What takes the space: by deployment, and by kind of data.
export function DiskTab() {
  const mayManage = useMay("organization:manage");
  const disk = useApi("GET /system/disk", {}, { enabled: mayManage, everyMs: EVERY_MS });

  if (!mayManage) return <Empty title="You may not see the disk">Admins and operators of the organization may.</Empty>;
  if (disk.error) return <Problem error={disk.error} retry={() => void disk.refetch()} />;
  if (!disk.data) return <p className="soft">Measuring…</p>;
  const places = disk.data.taken.filter((each) => each.bytes > 0);

  return (
    <>
      <Space of={disk.data} />
      <section className="card" aria-label="By deployment">
        <h2>By deployment</h2>
        <Table
          label="Space by deployment"
          rows={byDeployment(places)}
          getKey={([name]) => name}
          columns={[
            { title: "Deployment", show: ([name]) => name },
            { title: "Size", show: ([, size]) => bytes(size), isNumber: true },
          ]}
        />
      </section>
      <section className="card" aria-label="By kind of data">
        <h2>By kind of data</h2>
        <Table
          label="Space by kind of data"
          rows={places.slice(0, SHOWN)}
          getKey={(each) => `${each.deployment_id} ${each.kind} ${each.place}`}
          isStacked
          columns={[
            { title: "Kind", show: (each) => each.kind },
            { title: "Deployment", show: (each) => each.deployment ?? <span className="soft">{OWN}</span> },
            { title: "Where", show: (each) => each.place },
            { title: "Dead rows", show: (each) => (each.dead_bytes ? bytes(each.dead_bytes) : "–"), isNumber: true },
            { title: "Size", show: (each) => bytes(each.bytes), isNumber: true },
          ]}
        />
      </section>
    </>
  );
}

function Space({ of }: { of: DiskReport }) {
  const problems = of.databases.filter((each) => each.problem);

  return (
    <section className="card" aria-label="Disk">
      <h2>Disk</h2>
      <dl className="card-body facts">
        <Fact title="State">
          {of.shortage ? <Status tone="bad" word="New data is refused" /> : <Status tone="good" word="There is room" />}
        </Fact>
        <Fact title="Free">
          {bytes(of.free_bytes)} of {bytes(of.total_bytes)}
        </Fact>
        <Fact title="In reserve">{bytes(of.reserve_bytes)}</Fact>
        <Fact title="Home folder">
          <code>{of.folder}</code> {bytes(of.home_bytes)}
        </Fact>
        <Fact title="Databases">{bytes(of.databases_bytes)}</Fact>
      </dl>
      {of.shortage && (
        <p className="card-body bad-text" role="alert">
          Traces, runs and deployments are refused: {of.shortage}.
        </p>
      )}
      {problems.map((each) => (
        <p key={each.name} className="card-body notice">
          {each.name} ({bytes(each.bytes)}) cannot be measured by table: {each.problem}
        </p>
      ))}
    </section>
  );
}

function byDeployment(places: SpaceTaken[]): [string, number][] {
  const sums = new Map<string, number>();
  for (const each of places) {
    const name = each.deployment ?? OWN;
    sums.set(name, (sums.get(name) ?? 0) + each.bytes);
  }

  return [...sums].sort(([, one], [, other]) => other - one);
}
