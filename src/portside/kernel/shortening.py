"""Shortens texts for people: never in the middle of a word, and always with a mark where something is missing."""

MARK = "…"


def shorten(text: str, limit: int) -> str:
    """Return a text of at most `limit` characters, cut behind a whole line if possible, else behind a whole word."""
    if len(text) <= limit:
        return text

    beginning = text[: limit - len(MARK) - 1]
    is_cut_in_line = text[len(beginning)] != "\n"
    if is_cut_in_line and "\n" in beginning:
        beginning = beginning.rpartition("\n")[0]
    elif is_cut_in_line:
        return shorten_line(text, limit)

    return f"{beginning}\n{MARK}"


def shorten_line(line: str, limit: int) -> str:
    """Return a line of at most `limit` characters, cut behind a whole word; a word that is too long is cut inside."""
    if len(line) <= limit:
        return line

    beginning = line[: limit - len(MARK)]
    is_cut_in_word = not line[len(beginning)].isspace()
    words, space, _last_word = beginning.rpartition(" ")
    if is_cut_in_word and space and words.strip():
        beginning = words

    return f"{beginning.rstrip()}{MARK}"


def first_line(text: str, limit: int) -> str:
    """Return the first line of a text that is not empty, of at most `limit` characters."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return shorten_line(lines[0], limit) if lines else ""
