// Pictures in messages. Those that a message brings along are shown; the server of another one would learn who reads
// this, so it is a link.

import { summarize } from "./Json";

type Block = Record<string, unknown>;

const OWN_PICTURE = /^data:image\/(png|jpeg|gif|webp);base64,/;

/** The address of the picture in a block of a message, in the forms of the usual providers; null without one. */
export function getPicture(block: object): string | null {
  const { type, image_url, url, source, data, base64, mime_type, inline_data, inlineData } = block as Block;
  const address = image_url as { url?: unknown } | string | undefined;
  if (typeof address === "string") return address;
  if (typeof address?.url === "string") return address.url;

  const inline = (inline_data ?? inlineData) as { data?: unknown; mime_type?: unknown; mimeType?: unknown } | undefined;
  if (typeof inline?.data === "string") return withType(inline.data, inline.mime_type ?? inline.mimeType);
  if (type !== "image" && type !== "input_image" && type !== "image_file") return null;
  if (typeof url === "string") return url;

  const from = source as { data?: unknown; media_type?: unknown; url?: unknown } | undefined;
  if (typeof from?.url === "string") return from.url;
  const content = data ?? base64 ?? from?.data;

  return typeof content === "string" ? withType(content, mime_type ?? from?.media_type) : null;
}

function withType(data: string, type: unknown): string {
  return `data:${String(type ?? "image/png")};base64,${data}`;
}

export function Picture({ address }: { address: string }) {
  if (OWN_PICTURE.test(address)) return <img className="said-image" src={address} alt="In this message" />;

  return (
    <a className="text" href={/^https?:/.test(address) ? address : undefined} target="_blank" rel="noopener noreferrer">
      Image at {summarize(address)}
    </a>
  );
}
