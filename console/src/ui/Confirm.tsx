import { type ReactNode, useState } from "react";
import { TextField } from "./Field";
import { type Change, DialogForm, FormButtons } from "./Form";

interface Props {
  title: string;
  action: string;
  cancel?: string;
  // The text that somebody must type before the action, if the action cannot be undone.
  name?: string;
  change: Change;
  isDisabled?: boolean;
  onConfirm: () => void;
  onClose: () => void;
  children: ReactNode;
}

// Asks for confirmation of an action that deletes something.
export function Confirm({ title, name, change, isDisabled = false, onConfirm, onClose, children, ...words }: Props) {
  const [text, setText] = useState("");
  const isNamed = name === undefined || text === name;

  return (
    <DialogForm title={title} change={change} onSubmit={onConfirm} onClose={onClose}>
      {children}
      {name !== undefined && <TextField label={`Type ${name} to confirm`} value={text} onChange={setText} />}
      <FormButtons {...words} isDangerous isDisabled={isDisabled || !isNamed} onCancel={onClose} />
    </DialogForm>
  );
}
