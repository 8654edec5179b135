// Turns Markdown into nodes that are safe to show; HTML in it is shown as text. Loaded with the first text.

import DOMPurify from "dompurify";
import { Marked } from "marked";

const escaped: Record<string, string> = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
const escapeHtml = (text: string) => text.replace(/[&<>"']/g, (character) => escaped[character] ?? character);
const OWN_IMAGE = /^data:image\/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/=]+$/;

const marked = new Marked({
  gfm: true,
  breaks: true,
  renderer: {
    html: ({ text }) => escapeHtml(text),
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
  return purify.sanitize(marked.parse(text, { async: false }), ALLOWED);
}
