"""Addresses of the hosted service, region by region, for those who keep firewalls (spec: Network allowlists)."""

from portside.limits.types import Region

EGRESS: dict[Region, tuple[str, ...]] = {
    Region.US: (
        "34.59.65.97",
        "34.67.51.221",
        "34.46.212.37",
        "34.132.150.88",
        "35.188.222.201",
        "34.58.194.127",
        "34.59.97.173",
        "104.198.162.55",
    ),
    Region.EU: (
        "34.13.192.67",
        "34.147.105.64",
        "34.90.22.166",
        "34.147.36.213",
        "34.32.137.113",
        "34.91.238.184",
        "35.204.101.241",
        "35.204.48.32",
    ),
}
INGRESS: dict[Region, tuple[str, ...]] = {
    Region.US: ("34.8.121.39", "34.107.251.234"),
    Region.EU: ("34.95.92.214", "34.13.73.122"),
}
