import type { useWaiting } from "./useWaiting";

const NAMED = 5;

// The agents whose waiting threads are missing here, with the reason.
export function NotAsked({ refused, notAsked }: Pick<ReturnType<typeof useWaiting>, "refused" | "notAsked">) {
  const reasons = [...new Set(refused.map(({ reason }) => reason))];

  return (
    <>
      {reasons.map((reason) => {
        const names = refused.filter((each) => each.reason === reason).map(({ name }) => name);

        return (
          <p key={reason} className="soft" role="status">
            Threads of {names.join(", ")} that wait for a person are not shown: {reason}.
          </p>
        );
      })}
      {notAsked.length > 0 && (
        <p className="soft" role="status">
          {notAsked.length} more agents are not asked:{" "}
          {notAsked
            .slice(0, NAMED)
            .map(({ name }) => name)
            .join(", ")}
          {notAsked.length > NAMED && " and others"}. See the threads of each.
        </p>
      )}
    </>
  );
}
