import type { useWaiting } from "./useWaiting";

// The agents whose waiting threads are missing here, with the reason.
export function NotAsked({ refused }: Pick<ReturnType<typeof useWaiting>, "refused">) {
  const reasons = [...new Set(refused.map(({ reason }) => reason))];
  return reasons.map((reason) => {
    const names = refused.filter((each) => each.reason === reason).map(({ name }) => name);
    return (
      <p key={reason} className="soft" role="status">
        Threads of {names.join(", ")} that wait for a person are not shown: {reason}.
      </p>
    );
  });
}
