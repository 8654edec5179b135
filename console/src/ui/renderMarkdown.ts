// Turns Markdown into nodes that are safe to show; HTML in it is shown as text. Loaded with the first text.

import DOMPurify from "dompurify";
import { Marked } from "marked";
import { copy } from "./Copy";
import { tokenize } from "./codeTokens";

const escaped: Record<string, string> = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
const escapeHtml = (text: string) => text.replace(/[&<>"']/g, (character) => escaped[character] ?? character);
const OWN_IMAGE = /^data:image\/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/=]+$/;

const marked = new Marked({
  gfm: true,
  breaks: true,
  renderer: {
    html: ({ text }) => escapeHtml(text),
    // The language stands in the title, which is an attribute that stays.
    code: ({ text, lang }) =>
      `<pre title="${escapeHtml(lang?.split(/\s/, 1)[0] ?? "")}"><code>${escapeHtml(text)}</code></pre>`,
    // An image from elsewhere would tell its server who reads this; it becomes a link.
    image: ({ href, text }) =>
      OWN_IMAGE.test(href)
        ? `<img src="${href}" alt="${escapeHtml(text)}">`
        : `<a href="${escapeHtml(href)}">${escapeHtml(text || href)}</a>`,
  },
});

const purify = DOMPurify(window);

purify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName === "A") {
    node.setAttribute("target", "_blank");
    node.setAttribute("rel", "noopener noreferrer");
  }

  // Wide code is scrolled with the keyboard too.
  if (node.tagName === "PRE") node.setAttribute("tabindex", "0");
});

const ALLOWED = {
  ALLOWED_TAGS: [
    ..."a b blockquote br code del em h1 h2 h3 h4 h5 h6 hr i img li ol p pre s strong".split(" "),
    ..."sub sup table tbody td th thead tr ul".split(" "),
  ],
  ALLOWED_ATTR: ["align", "alt", "href", "src", "start", "title"],
  ALLOWED_URI_REGEXP: /^(?:https?:|mailto:)/i,
  ADD_DATA_URI_TAGS: ["img"],
  ALLOW_DATA_ATTR: false,
  RETURN_DOM_FRAGMENT: true as const,
};

export function render(text: string): DocumentFragment {
  const fragment = purify.sanitize(marked.parse(text, { async: false }), ALLOWED);
  for (const block of fragment.querySelectorAll("pre")) dress(block);

  // Each part of a text may be in a language that is written from right to left.
  for (const part of fragment.children) part.setAttribute("dir", part.tagName === "PRE" ? "ltr" : "auto");
  return fragment;
}

// Colours the code of a block, and puts its language and a button that copies it above it.
function dress(block: HTMLPreElement) {
  const language = block.title;
  const code = block.querySelector("code");
  if (!code) return;
  const text = code.textContent ?? "";

  block.removeAttribute("title");
  code.replaceChildren(
    ...tokenize(text, language).map(({ kind, text: part }) => {
      if (kind === "plain") return part;
      const span = document.createElement("span");
      span.className = `token-${kind}`;
      span.textContent = part;
      return span;
    }),
  );

  const frame = document.createElement("div");
  frame.className = "code-block";
  const head = document.createElement("div");
  head.className = "code-head";

  const name = document.createElement("span");
  name.textContent = language;
  head.append(name, copyButton(text));
  block.replaceWith(frame);
  frame.append(head, block);
}

function copyButton(text: string): HTMLButtonElement {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "link small";
  button.textContent = "Copy";
  button.setAttribute("aria-label", "Copy the code");

  button.addEventListener("click", () => {
    void copy(text, button).then((isCopied) => {
      button.textContent = isCopied ? "Copied" : "Could not copy";
    });
  });

  return button;
}
