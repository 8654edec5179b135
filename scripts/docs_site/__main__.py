"""Builds the documentation's site into the package, which serves it below `/help/`.

    python -m scripts.docs_site build            build it if its sources changed; if the builder is missing, say so
    python -m scripts.docs_site build --strict   the same, and exit with 1 if the builder is missing

`docs/README.md` orders the pages: its headings are the sections of the navigation, its tables the pages. A page that it
lacks, a broken link and a load from elsewhere fail the build.

A build goes through these modules: `sources` lists the pages, `navigation` orders them, `links` checks the links
between them, `staging` writes them for the builder, which `building` runs. Of what the builder wrote, `shrinking` takes
out what nobody sees, and `policy` moves scripts into files. `checking` reads the result.
"""

import sys

from scripts.docs_site.building import build
from scripts.docs_site.problems import BadSiteError
from scripts.kept_builds import CannotBuildError


def main(arguments: list[str]) -> int:
    if arguments not in (["build"], ["build", "--strict"]):
        print(__doc__, file=sys.stderr)
        return 2

    try:
        build()
    except CannotBuildError as problem:
        print(f"· the documentation's site is not built: {problem}", file=sys.stderr)
        return 1 if "--strict" in arguments else 0
    except BadSiteError as problem:
        print(problem, file=sys.stderr)
        return 1

    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
