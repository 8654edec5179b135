"""Shortens texts for people: never in the middle of a word, and always with a mark where something is missing."""

MARK = "…"


def shorten(text: str, limit: int) -> str:
    """Return a text of at most `limit` characters, cut behind a whole line if possible, else behind a whole word."""
    if len(text) <= limit:
        return text

    kept = text[: limit - len(MARK) - 1]
    is_cut_in_line = text[len(kept)] != "\n"
    if is_cut_in_line and "\n" in kept:
        kept = kept.rpartition("\n")[0]
    elif is_cut_in_line:
        return shorten_line(text, limit)

    return f"{kept}\n{MARK}"


def shorten_line(line: str, limit: int) -> str:
    """Return a line of at most `limit` characters, cut behind a whole word; a word that is too long is cut inside."""
    if len(line) <= limit:
        return line

    kept = line[: limit - len(MARK)]
    is_cut_in_word = not line[len(kept)].isspace()
    words, space, _rest = kept.rpartition(" ")
    if is_cut_in_word and space and words.strip():
        kept = words

    return f"{kept.rstrip()}{MARK}"


def first_line(text: str, limit: int) -> str:
    """Return the first line of a text that is not empty, of at most `limit` characters."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return shorten_line(lines[0], limit) if lines else ""
