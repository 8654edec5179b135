// Splits code into comments, texts, numbers and words, for their colours. It knows what most languages have in common,
// and no grammar: a colour may be missing, but no character is ever changed.

type TokenKind = "comment" | "text" | "number" | "word" | "plain";

export interface Token {
  kind: TokenKind;
  text: string;
}

const WORDS = new Set(
  (
    "abstract and as assert async await bool boolean break case catch class const continue def default del do elif " +
    "else enum except export extends false False finally fn for from func function global go if impl import in " +
    "instanceof int interface is lambda let match mod module mut new nil None nonlocal not null number or package " +
    "pass private protected pub public raise return select self static str string struct super switch this throw " +
    "trait true True try type typeof undefined use var void where while with yield " +
    "SELECT FROM WHERE INSERT INTO UPDATE SET DELETE CREATE TABLE JOIN LEFT ON GROUP BY ORDER LIMIT VALUES AND OR NOT"
  ).split(" "),
);

const HASH_COMMENTS = new Set([
  "",
  "bash",
  "dockerfile",
  "ini",
  "py",
  "python",
  "rb",
  "ruby",
  "sh",
  "shell",
  "toml",
  "yaml",
  "yml",
]);

const DASH_COMMENTS = new Set(["lua", "postgres", "sql"]);
// Longer code would take longer to colour than to read.
const COLOURED_CHARS = 40_000;

const PARTS = {
  slashes: String.raw`//[^\n]*|/\*[\s\S]*?(?:\*/|$)`,
  hash: String.raw`#[^\n]*`,
  dashes: String.raw`--[^\n]*`,
  text: String.raw`"""[\s\S]*?(?:"""|$)|'''[\s\S]*?(?:'''|$)|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?|${"`"}(?:\\.|[^${"`"}\\])*${"`"}?`,
  number: String.raw`\b\d[\w.]*`,
  word: String.raw`[A-Za-z_$][\w$]*`,
};

export function tokenize(code: string, language: string): Token[] {
  const name = language.toLowerCase();
  if (code.length > COLOURED_CHARS || name === "text" || name === "plaintext") return [{ kind: "plain", text: code }];

  const comments = HASH_COMMENTS.has(name) ? PARTS.hash : DASH_COMMENTS.has(name) ? PARTS.dashes : PARTS.slashes;
  const pattern = new RegExp(`(${comments})|(${PARTS.text})|(${PARTS.number})|(${PARTS.word})`, "g");
  const tokens: Token[] = [];
  let end = 0;

  const add = (kind: TokenKind, text: string) => {
    const last = tokens.at(-1);
    if (last && last.kind === kind && kind === "plain") last.text += text;
    else if (text) tokens.push({ kind, text });
  };

  for (const match of code.matchAll(pattern)) {
    const [whole, comment, text, number] = match;
    add("plain", code.slice(end, match.index));

    if (comment !== undefined) add("comment", whole);
    else if (text !== undefined) add("text", whole);
    else if (number !== undefined) add("number", whole);
    else add(WORDS.has(whole) ? "word" : "plain", whole);

    end = match.index + whole.length;
  }

  add("plain", code.slice(end));
  return tokens;
}
