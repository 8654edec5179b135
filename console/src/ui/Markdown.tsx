import { useEffect, useLayoutEffect, useRef, useState } from "react";

type Render = (text: string) => DocumentFragment;

let loaded: Render | null = null;

// Text as Markdown. It is the text itself until the parser is loaded, and nothing in it runs or loads anything.
export function Markdown({ text }: { text: string }) {
  const [render, setRender] = useState<Render | null>(() => loaded);
  const element = useRef<HTMLDivElement>(null);

  useEffect(() => {
    if (render) return;
    let isCurrent = true;
    void import("./renderMarkdown").then((module) => {
      loaded = module.render;
      if (isCurrent) setRender(() => module.render);
    });

    return () => {
      isCurrent = false;
    };
  }, [render]);

  useLayoutEffect(() => {
    element.current?.replaceChildren(render ? render(text) : text);
  }, [render, text]);

  return <div className={render ? "markdown" : "markdown plain"} dir="auto" ref={element} />;
}
