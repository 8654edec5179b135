import { getRouteApi } from "@tanstack/react-router";
import type { SettingInForce } from "../../api/platform";
import { useApi } from "../../api/queries";
import { useMay } from "../../shell/session";
import { Empty } from "../../ui/Empty";
import { FilterSelect } from "../../ui/FilterSelect";
import { Problem } from "../../ui/Problem";
import { SearchField } from "../../ui/SearchField";
import { useSearchParams } from "../../ui/useSearchParams";
import { MasterKey } from "./MasterKey";
import { ServiceCard } from "./ServiceCard";

const systemSettingsTab = getRouteApi("/system/settings");

// The settings that the platform runs with. They come from its environment and options, and are changed there.
export function SettingsTab() {
  const { q, show } = systemSettingsTab.useSearch();
  const { bind } = useSearchParams({ q, show });
  const mayManage = useMay("organization:manage");
  const system = useApi("GET /system", {}, { enabled: mayManage });

  if (!mayManage) {
    return <Empty title="You may not see the settings">Admins and operators of the organization may.</Empty>;
  }
  if (system.error) return <Problem error={system.error} retry={() => void system.refetch()} />;
  const text = (q ?? "").toLowerCase();

  const settings = (system.data?.settings ?? []).filter(
    (each) =>
      (show === "all" || text || !each.is_default) && `${each.name} ${each.description}`.toLowerCase().includes(text),
  );

  return (
    <>
      <div className="filters">
        <SearchField label="Search settings" placeholder="Search all settings" {...bind("q")} />
        <FilterSelect label="Which settings" all="Changed" options={[["all", "All"]]} {...bind("show")} />
      </div>
      {system.data && settings.length === 0 && (
        <Empty title={text ? "No setting matches" : "All settings have their defaults"} command="portside up --help">
          Set them as environment variables of the platform, or as options, and restart it.
        </Empty>
      )}
      {settings.length > 0 && (
        <section className="card" aria-label="Settings in force">
          <ul className="settings-list">
            {settings.map((each) => (
              <li key={each.name}>
                <div>
                  <code>{each.name}</code>
                  <p className="soft small">{each.description}</p>
                </div>
                <div>
                  <Value of={each} />
                  {!each.is_default && <span className="tag">changed</span>}
                </div>
              </li>
            ))}
          </ul>
        </section>
      )}
      {system.data && <ServiceCard service={system.data.service} />}
      <MasterKey />
    </>
  );
}

function Value({ of: setting }: { of: SettingInForce }) {
  if (!setting.is_set) return <span className="soft">not set</span>;
  if (setting.is_hidden) return <span className="soft">set, and not shown</span>;
  if (setting.value === "") return <span className="soft">empty</span>;
  if (typeof setting.value === "boolean") return <code>{setting.value ? "on" : "off"}</code>;
  return <code>{String(setting.value)}</code>;
}
