// A form: fields, what the API says about them, and buttons. It stands anywhere, in a card, or above the page.

import {
  type ComponentProps,
  createContext,
  type FormEvent,
  type ReactNode,
  useCallback,
  useContext,
  useEffect,
  useMemo,
  useState,
} from "react";
import { type ApiError, areAllAbout, problemAt } from "../api/client";
import { Dialog } from "./Dialog";
import { Problem } from "./Problem";

// A request that changes something, as far as a form shows it.
export interface Change {
  error: ApiError | null;
  isPending: boolean;
}

interface Context extends Change {
  // The fields of the body that the form has.
  names: readonly string[];
  // Adds a field, until what it returns is called.
  register: (name: string) => () => void;
}

const FormContext = createContext<Context>({ error: null, isPending: false, names: [], register: () => () => {} });

interface FormProps extends Pick<ComponentProps<"form">, "className" | "noValidate" | "aria-label"> {
  // The request that the form sends.
  change: Change;
  onSubmit: () => void;
  children: ReactNode;
}

export function Form({ change, onSubmit, children, ...attributes }: FormProps) {
  const { error, isPending } = change;
  const [names, setNames] = useState<readonly string[]>([]);

  const register = useCallback((name: string) => {
    setNames((old) => [...old, name]);
    return () => setNames((old) => old.filter((each) => each !== name));
  }, []);

  const context = useMemo(() => ({ error, isPending, names, register }), [error, isPending, names, register]);

  const submit = (event: FormEvent) => {
    event.preventDefault();
    onSubmit();
  };

  return (
    <FormContext value={context}>
      <form className="fields" noValidate {...attributes} onSubmit={submit}>
        {children}
      </form>
    </FormContext>
  );
}

export function CardForm({ title, ...form }: { title: string } & FormProps) {
  return (
    <section className="card">
      <h2>{title}</h2>
      <Form {...form} aria-label={title} className="card-body fields" />
    </section>
  );
}

export function DialogForm({ title, onClose, ...form }: { title: string; onClose: () => void } & FormProps) {
  return (
    <Dialog title={title} onClose={onClose}>
      <Form {...form} />
    </Dialog>
  );
}

interface ButtonsProps {
  // The word of the button that sends the form.
  action: string;
  cancel?: string;
  isDangerous?: boolean;
  // Whether the fields hold something that cannot be sent.
  isDisabled?: boolean;
  onCancel?: () => void;
  // What else stands beside the buttons.
  children?: ReactNode;
}

// The end of a form: what the API says about no field in particular, and the buttons.
export function FormButtons(props: ButtonsProps) {
  const { action, cancel = "Cancel", isDangerous = false, isDisabled = false, onCancel, children } = props;
  const { error, isPending, names } = useContext(FormContext);

  return (
    <>
      {error && !areAllAbout(error, names) && <Problem error={error} />}
      <div className="row whole">
        <button
          type="submit"
          className={isDangerous ? "button danger" : "button main"}
          disabled={isDisabled || isPending}
        >
          {action}
        </button>
        {onCancel && (
          <button type="button" className="button" onClick={onCancel}>
            {cancel}
          </button>
        )}
        {children}
      </div>
    </>
  );
}

/** What the API says about a field of the form around it, by the field's name in the body. */
export function useFieldProblem(name: string | undefined): string | undefined {
  const { error, register } = useContext(FormContext);

  useEffect(() => (name === undefined ? undefined : register(name)), [name, register]);

  return name === undefined ? undefined : problemAt(error, name);
}
