import { type ReactNode, useEffect, useRef } from "react";

// A question or a short form above the page. Anything that people may want to link to has an address instead. The
// browser moves the focus into it, and it returns to where it was.
export function Dialog({ title, onClose, children }: { title: string; onClose: () => void; children: ReactNode }) {
  const dialog = useRef<HTMLDialogElement>(null);

  useEffect(() => {
    const opener = document.activeElement;
    dialog.current?.showModal();

    // A dialog that is taken out of the page, and not closed, leaves the focus nowhere.
    return () => {
      if (opener instanceof HTMLElement) opener.focus();
    };
  }, []);

  return (
    <dialog ref={dialog} className="dialog" aria-label={title} onClose={onClose}>
      <h2>{title}</h2>
      {children}
    </dialog>
  );
}
