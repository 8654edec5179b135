import { type FormEvent, type ReactNode, useState } from "react";
import type { ApiError } from "../api/client";
import { Dialog } from "./Dialog";
import { TextField } from "./Field";
import { Problem } from "./Problem";

interface Props {
  title: string;
  action: string;
  cancel?: string;
  // The text that the user must type before the action, if the action cannot be undone.
  name?: string;
  isDisabled?: boolean;
  error: ApiError | null;
  onConfirm: () => void;
  onClose: () => void;
  children: ReactNode;
}

// Asks for confirmation of an action that deletes something.
export function Confirm({
  title,
  action,
  cancel = "Cancel",
  name,
  isDisabled = false,
  error,
  onConfirm,
  onClose,
  children,
}: Props) {
  const [typed, setTyped] = useState("");
  const isTyped = name === undefined || typed === name;

  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (isTyped) onConfirm();
  };

  return (
    <Dialog title={title} onClose={onClose}>
      <form className="fields" onSubmit={submit}>
        {children}
        {name !== undefined && <TextField label={`Type ${name} to confirm`} value={typed} onChange={setTyped} />}
        {error && <Problem error={error} />}
        <div className="row">
          <button type="submit" className="button danger" disabled={isDisabled || !isTyped}>
            {action}
          </button>
          <button type="button" className="button" onClick={onClose}>
            {cancel}
          </button>
        </div>
      </form>
    </Dialog>
  );
}
