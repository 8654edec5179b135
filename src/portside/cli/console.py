"""`portside console`: opens the console in a browser, signed in."""

import os
import sys
import webbrowser
from urllib.parse import urlsplit

import click

from portside.cli.client import LOOPBACK, Platform, connection_options
from portside.cli.login import has_browser
from portside.cli.output import show_text


@click.command()
@click.option("--print", "is_printed", is_flag=True, help="Print the address, and open no browser.")
@connection_options
def console(platform: Platform, *, is_printed: bool) -> None:
    """Open the console.

    On the platform's own machine the address signs in with your key or login; it works once, within a minute.
    """
    address = f"{platform.url}/console/"
    if urlsplit(platform.url).hostname in LOOPBACK:
        address = platform.url + str(platform.call("POST", "/users/me/sign-in-links")["path"])
    if is_printed or not has_browser(os.environ, sys.platform) or not webbrowser.open(address):
        show_text(address)
