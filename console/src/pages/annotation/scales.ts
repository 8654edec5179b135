// How a question is answered: the configuration of its feedback key, as choices with a key of the keyboard each.

import type { FeedbackScale } from "../../api/platform";

export type ScaleName = "five" | "yes" | "ten" | "text" | "own";

export const SCALES: { name: ScaleName; title: string; scale: FeedbackScale | null }[] = [
  { name: "five", title: "1 to 5", scale: { type: "continuous", min: 1, max: 5 } },
  {
    name: "yes",
    title: "Yes or no",
    scale: {
      type: "categorical",
      categories: [
        { value: 1, label: "yes" },
        { value: 0, label: "no" },
      ],
    },
  },
  { name: "ten", title: "0 to 9", scale: { type: "continuous", min: 0, max: 9 } },
  { name: "text", title: "Text", scale: { type: "freeform" } },
  { name: "own", title: "As it is configured", scale: null },
];

export interface Choice {
  // What is typed for it.
  key: string;
  value: number;
  label: string;
}

const MOST_KEYS = 10;

export function getScaleName(scale: FeedbackScale): ScaleName {
  const same = SCALES.find((each) => each.scale && isSame(each.scale, scale));
  return same?.name ?? "own";
}

function isSame(one: FeedbackScale, other: FeedbackScale): boolean {
  return (
    one.type === other.type &&
    (one.min ?? null) === (other.min ?? null) &&
    (one.max ?? null) === (other.max ?? null) &&
    JSON.stringify(one.categories ?? null) === JSON.stringify(other.categories ?? null)
  );
}

// The choices of a scale; null if it is answered with a number or a text of one's own.
export function getChoices(scale: FeedbackScale | undefined): Choice[] | null {
  if (!scale) return numbers(1, 5);
  if (scale.type === "freeform") return null;

  if (scale.categories) {
    return scale.categories
      .slice(0, MOST_KEYS - 1)
      .map((each, index) => ({ key: String(index + 1), value: each.value, label: each.label ?? String(each.value) }));
  }

  const { min, max } = scale;
  if (min == null || max == null || !Number.isInteger(min) || !Number.isInteger(max)) return null;
  return min >= 0 && max < MOST_KEYS ? numbers(min, max) : null;
}

function numbers(min: number, max: number): Choice[] {
  return Array.from({ length: max - min + 1 }, (_, index) => ({
    key: String(min + index),
    value: min + index,
    label: String(min + index),
  }));
}
