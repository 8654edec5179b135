"""`python -m portside`."""

from portside.cli.main import main

main()
