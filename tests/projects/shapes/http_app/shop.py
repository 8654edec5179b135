OPEN: list[str] = []
