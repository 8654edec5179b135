"""`portside allowlist`: addresses of the hosted service."""

import click

from portside.cli.output import json_option, show_json, show_table
from portside.limits.types import Region
from portside.platform.addresses import EGRESS, INGRESS


@click.command()
@click.option("--region", type=click.Choice([region.value for region in Region]), help="Only this region.")
@json_option
def allowlist(region: str | None, *, as_json: bool) -> None:
    """Show the addresses that the hosted service sends from (egress) and answers on (ingress).

    They are the documented ones of the hosted service that clients may still talk to; a platform of your own sends from
    and answers on the addresses of its machine.
    """
    regions = [Region(region)] if region else list(Region)
    if as_json:
        show_json({r.value: {"egress": EGRESS[r], "ingress": INGRESS[r]} for r in regions})
        return
    directions = (("egress", EGRESS), ("ingress", INGRESS))
    rows = [(r.value, name, address) for r in regions for name, of in directions for address in of[r]]
    show_table(("REGION", "DIRECTION", "ADDRESS"), rows)
