import { useNavigate } from "@tanstack/react-router";

type SearchParams = Record<string, string | undefined>;

interface Binding {
  value: string | undefined;
  onChange: (value: string | undefined) => void;
}

/** The parameters of the page's address, `search`, and three ways to change them. */
export function useSearchParams<S extends SearchParams>(search: S) {
  const navigate = useNavigate();

  const go = (changes: Partial<S>, isReplacing: boolean) =>
    void navigate({ to: ".", search: (old) => ({ ...old, ...changes }), replace: isReplacing });

  // For filters: going back leaves the list, and does not undo them one by one.
  const replace = (changes: Partial<S>) => go(changes, true);

  // For an entry that is opened: going back closes it.
  const push = (changes: Partial<S>) => go(changes, false);

  // For the field of one filter.
  const bind = (name: keyof S & string): Binding => ({
    value: search[name],
    onChange: (value) => replace({ [name]: value } as Partial<S>),
  });

  return { replace, push, bind };
}
