import { useIsFetching } from "@tanstack/react-query";
import { Link, Outlet } from "@tanstack/react-router";
import { useRef, useState } from "react";
import { ownAgent } from "../api/server";
import { setPreferences, usePreferences } from "../preferences";
import { Icon, type IconName } from "../ui/Icon";
import { Progress } from "../ui/Progress";
import { useNarrow } from "../ui/useNarrow";
import { Account, WorkspaceSwitch } from "./Account";
import { Breadcrumb } from "./Breadcrumb";
import { Palette } from "./Palette";
import { covers, useSession } from "./session";

const PLACES = [
  {
    title: null,
    places: [
      { to: "/", title: "Home", icon: "home" },
      { to: "/inbox", title: "Inbox", icon: "inbox" },
    ],
  },
  {
    title: "Run",
    places: [
      { to: "/deployments", title: "Deployments", icon: "deployments" },
      { to: "/agents", title: "Agents", icon: "agents" },
      { to: "/prompts", title: "Prompts", icon: "prompts" },
    ],
  },
  {
    title: "Observe",
    places: [
      { to: "/traces", title: "Traces", icon: "traces" },
      { to: "/figures", title: "Figures", icon: "figures" },
      { to: "/datasets", title: "Datasets", icon: "datasets" },
      { to: "/annotation", title: "Annotation", icon: "annotation" },
    ],
  },
  {
    title: "Administer",
    places: [
      { to: "/usage", title: "Usage", icon: "usage" },
      { to: "/prices", title: "Prices", icon: "prices" },
      { to: "/people", title: "People", icon: "person" },
      { to: "/audit", title: "Audit log", icon: "log", needs: ["organization:manage", "workspaces:manage"] },
      { to: "/alerts", title: "Alerts", icon: "bell", needs: ["organization:manage"] },
      { to: "/system", title: "System", icon: "system" },
    ],
  },
] as const satisfies readonly {
  title: string | null;
  // The place is hidden from people who have none of these permissions.
  places: readonly { to: string; title: string; icon: IconName; needs?: readonly string[] }[];
}[];

type Place = (typeof PLACES)[number]["places"][number];

// Without a platform there are only the pages of the one agent.
const OF_AGENTS: readonly string[] = ["/agents", "/inbox"];

const SHOWN =
  ownAgent === null
    ? PLACES
    : [{ title: null, places: PLACES.flatMap(({ places }) => places.filter(({ to }) => OF_AGENTS.includes(to))) }];

// A phone's width has room for these; the rest is one touch away.
const ON_A_PHONE: readonly string[] = ["/", "/inbox", "/agents", "/traces"];

const THEMES = { system: "light", light: "dark", dark: "system" } as const;
const THEME_ICONS = { system: "screen", light: "sun", dark: "moon" } as const;

export function Shell() {
  const { isLive } = usePreferences();
  const isNarrow = useNarrow();
  const [isSearching, setSearching] = useState(false);

  return (
    <div className="shell">
      <a className="skip" href="#page">
        Skip to the page
      </a>
      {isNarrow ? <NarrowRail /> : <Rail />}
      <div className="stage">
        <div className="topbar">
          <Breadcrumb />
          <div className="tools">
            <button type="button" className="tool search" aria-label="Go to…" onClick={() => setSearching(true)}>
              <Icon name="search" />
              <span>Go to…</span>
              <kbd>Ctrl K</kbd>
            </button>
            <button
              type="button"
              className="tool"
              aria-label="Live"
              aria-pressed={isLive}
              title={isLive ? "Live: the page follows what happens" : "Paused: the page stays as it is"}
              onClick={() => setPreferences({ isLive: !isLive })}
            >
              <Icon name={isLive ? "live" : "pause"} />
              <span>{isLive ? "Live" : "Paused"}</span>
            </button>
            <ViewTools />
          </div>
          <Reading />
        </div>
        <main id="page" tabIndex={-1}>
          <Outlet />
        </main>
      </div>
      <Palette isOpen={isSearching} setOpen={setSearching} />
    </div>
  );
}

// What changes how a page looks, for everybody who sees one.
export function ViewTools() {
  const { theme, zone } = usePreferences();

  return (
    <>
      <button
        type="button"
        className="tool"
        aria-label={`Times: ${zone === "utc" ? "UTC" : "Local"}`}
        title="Switch all times between this machine's zone and UTC"
        onClick={() => setPreferences({ zone: zone === "utc" ? "local" : "utc" })}
      >
        <Icon name="clock" />
        <span>{zone === "utc" ? "UTC" : "Local"}</span>
      </button>
      <button
        type="button"
        className="tool"
        aria-label={`Theme: ${theme}`}
        title={`Theme: ${theme}`}
        onClick={() => setPreferences({ theme: THEMES[theme] })}
      >
        <Icon name={THEME_ICONS[theme]} />
      </button>
    </>
  );
}

function Rail() {
  return (
    <header className="rail">
      <Link to="/" className="brand" aria-label="Portside, home">
        <img src="/console/favicon.svg" alt="" width="22" height="22" />
        <span>Portside</span>
      </Link>
      {ownAgent === null && <WorkspaceSwitch />}
      <nav aria-label="Places">
        <AllPlaces />
      </nav>
      {ownAgent === null && <Account />}
    </header>
  );
}

function NarrowRail() {
  const more = useRef<HTMLDivElement>(null);
  const phonePlaces = SHOWN.flatMap<Place>(({ places }) => places.filter(({ to }) => ON_A_PHONE.includes(to)));

  return (
    <header className="rail">
      <nav aria-label="Places">
        {phonePlaces.map((place) => (
          <PlaceLink key={place.to} place={place} />
        ))}
        {ownAgent === null && (
          <button type="button" className="place" popoverTarget="more-places">
            <Icon name="menu" />
            <span>More</span>
          </button>
        )}
      </nav>
      {ownAgent === null && (
        <div id="more-places" ref={more} popover="auto" className="more-places">
          <WorkspaceSwitch />
          <nav aria-label="All places">
            <AllPlaces onLeave={() => more.current?.hidePopover()} />
          </nav>
          <Account />
        </div>
      )}
    </header>
  );
}

function AllPlaces({ onLeave }: { onLeave?: () => void }) {
  const { permissions } = useSession().identity;
  const mayGo = (place: Place) => !("needs" in place) || place.needs.some((each) => covers(permissions, each));

  return (
    <>
      {SHOWN.map((group) => (
        <div key={group.title} className="places">
          {group.title && <p className="places-title">{group.title}</p>}
          {group.places.filter(mayGo).map((place) => (
            <PlaceLink key={place.to} place={place} onLeave={onLeave} />
          ))}
        </div>
      ))}
      {ownAgent === null && (
        <div className="places">
          <a href="/help/" target="_blank" rel="noopener" className="place" title="Help: the documentation">
            <Icon name="help" />
            <span>Help</span>
          </a>
        </div>
      )}
    </>
  );
}

function PlaceLink({ place, onLeave }: { place: Place; onLeave?: (() => void) | undefined }) {
  return (
    <Link
      to={place.to}
      activeOptions={{ exact: place.to === "/" }}
      className="place"
      title={place.title}
      onClick={onLeave}
    >
      <Icon name={place.icon} />
      <span>{place.title}</span>
    </Link>
  );
}

// The last content stays below the line.
function Reading() {
  const count = useIsFetching({ predicate: (query) => query.state.data === undefined });
  return count > 0 ? <Progress /> : null;
}
