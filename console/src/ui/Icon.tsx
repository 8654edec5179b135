// Icons of one weight on a 16-pixel grid. They only repeat what a word next to them says.

const PATHS = {
  home: "M2.5 7.5 8 3l5.5 4.5V13h-4v-3.5h-3V13h-4z",
  deployments: "M8 2 13.5 5v6L8 14l-5.5-3V5zM2.5 5 8 8l5.5-3M8 8v6",
  search: "M7 11.5a4.5 4.5 0 1 0 0-9 4.5 4.5 0 0 0 0 9zM10.5 10.5 14 14",
  plus: "M8 3v10M3 8h10",
  close: "M4 4l8 8M12 4l-8 8",
  copy: "M6 6h7v7H6zM10 6V3H3v7h3",
  check: "M3 8.5 6.5 12 13 4.5",
  right: "M6 3.5 10.5 8 6 12.5",
  down: "M3.5 6 8 10.5 12.5 6",
  external: "M9 3h4v4M13 3 7.5 8.5M11 9.5V13H3V5h3.5",
  sun: "M8 10.5a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5zM8 1.5v1.5M8 13v1.5M1.5 8H3M13 8h1.5M3.4 3.4l1 1M11.6 11.6l1 1M3.4 12.6l1-1M11.6 4.4l1-1",
  moon: "M13 9.5A5.5 5.5 0 0 1 6.5 3 5.5 5.5 0 1 0 13 9.5z",
  screen: "M2.5 3.5h11v7h-11zM6 13h4",
  clock: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12zM8 4.5V8l2.5 1.5",
  live: "M8 9.2a1.2 1.2 0 1 0 0-2.4 1.2 1.2 0 0 0 0 2.4zM5 11a4.2 4.2 0 0 1 0-6M11 5a4.2 4.2 0 0 1 0 6M3 13a7 7 0 0 1 0-10M13 3a7 7 0 0 1 0 10",
  pause: "M5.5 3.5v9M10.5 3.5v9",
  rotate: "M13 8a5 5 0 1 1-1.6-3.7L13 6M13 2.5V6H9.5",
  back: "M6 4 2.5 7.5 6 11M2.5 7.5H9a4.5 4.5 0 0 1 4.5 4.5",
  stop: "M4 4h8v8H4z",
  trash: "M3 4.5h10M6.5 4.5V3h3v1.5M4.5 4.5 5 13h6l.5-8.5",
  person: "M8 8a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5zM3 13.5c.6-2.4 2.5-3.5 5-3.5s4.4 1.1 5 3.5",
  git: "M4.5 6.500v5M4.5 6.500a1.7 1.7 0 1 0 0-3.4 1.7 1.7 0 0 0 0 3.400zM11.5 6.500a1.7 1.7 0 1 0 0-3.4 1.7 1.7 0 0 0 0 3.400zM4.5 14a1.7 1.7 0 1 0 0-3.4 1.7 1.7 0 0 0 0 3.400zM11.5 6.500C11.5 9 8 9 5.5 10.5",
  image: "M2.5 4.5 8 2l5.5 2.500v7L8 14l-5.5-2.500zM5.2 3.300l5.6 2.600v3",
  menu: "M2.5 4.500h11M2.5 8h11M2.5 11.500h11",
  alert: "M8 2.5 14 13H2zM8 6.500v3M8 11.200v.3",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name }: { name: IconName }) {
  return (
    <svg className="icon" viewBox="0 0 16 16" aria-hidden="true" focusable="false">
      <path d={PATHS[name]} />
    </svg>
  );
}
