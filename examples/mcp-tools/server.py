"""An MCP server with two tools, which speaks over its standard input and output. It stands for any server you use."""

from mcp.server.fastmcp import FastMCP

server = FastMCP("stock", log_level="WARNING")
STOCK = {"lamp": 12, "chair": 3, "table": 0}


@server.tool()
def count_items(item: str) -> int:
    """Return how many pieces of an item are in stock."""
    return STOCK.get(item, 0)


@server.tool()
def list_items() -> str:
    """List what the shop sells."""
    return ", ".join(STOCK)


if __name__ == "__main__":
    server.run()
