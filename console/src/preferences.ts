// What one person chose in this browser: theme, time zone, live updates. Nothing here is needed to show an address.

import { useSyncExternalStore } from "react";

interface Preferences {
  theme: "system" | "light" | "dark";
  zone: "local" | "utc";
  isLive: boolean;
  isRailWide: boolean;
  workspace: string | null;
  // The agent that was looked at last.
  agent: string | null;
}

const KEY = "portside-console";

const DEFAULTS: Preferences = {
  theme: "system",
  zone: "local",
  isLive: true,
  isRailWide: true,
  workspace: null,
  agent: null,
};

const listeners = new Set<() => void>();
let current = read();

function read(): Preferences {
  try {
    return { ...DEFAULTS, ...JSON.parse(localStorage.getItem(KEY) ?? "{}") };
  } catch {
    return DEFAULTS;
  }
}

function show() {
  const root = document.documentElement;
  if (current.theme === "system") delete root.dataset.theme;
  else root.dataset.theme = current.theme;
}

export function setPreferences(changes: Partial<Preferences>) {
  current = { ...current, ...changes };
  try {
    localStorage.setItem(KEY, JSON.stringify(current));
  } catch {
    // A browser that stores nothing keeps the choice until the page is closed.
  }

  show();
  for (const listener of listeners) listener();
}

export function preferences(): Preferences {
  return current;
}

export function usePreferences(): Preferences {
  return useSyncExternalStore(subscribe, preferences);
}

function subscribe(listener: () => void) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

// Another tab changed something.
addEventListener("storage", (event) => {
  if (event.key !== KEY) return;
  current = read();
  show();
  for (const listener of listeners) listener();
});

show();
