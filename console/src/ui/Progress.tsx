import { useEffect, useState } from "react";

const SLOW_MS = 6_000;
const LONG_MS = 15_000;
const TICK_MS = 1_000;

// A line while something is read for the first time. When that takes long, words say so: a page must not stay empty.
export function Progress() {
  const [seconds, setSeconds] = useState(0);
  useEffect(() => {
    const began = Date.now();
    const timer = setInterval(() => setSeconds(Math.round((Date.now() - began) / 1000)), TICK_MS);
    return () => clearInterval(timer);
  }, []);

  return (
    <>
      <div className="progress" role="progressbar" aria-label="Loading" />
      {seconds * 1000 >= SLOW_MS && (
        <p className="slow" role="status">
          No answer for {seconds} s; the page goes on by itself.
          {seconds * 1000 >= LONG_MS && (
            <>
              {" "}
              The platform's database or the agent may hang: <code>portside doctor</code> examines the installation.
            </>
          )}
        </p>
      )}
    </>
  );
}
