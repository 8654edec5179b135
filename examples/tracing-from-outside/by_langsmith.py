"""A program that runs anywhere and sends traces to the platform with the LangSmith SDK.

It is not deployed: three variables say where the traces go (see the README). Without them it works the same, untraced.
"""

from langsmith import Client, traceable, tracing_context

PRICES = {"tea": 3, "cake": 4}


@traceable(run_type="tool")
def find_price(item: str) -> int:
    """Look a price up. It becomes a span of type tool below its caller."""
    return PRICES[item]


@traceable(run_type="llm", metadata={"ls_provider": "example", "ls_model_name": "rules"})
def phrase(item: str, price: int) -> dict:
    """Stand for a model: with `usage_metadata` the platform counts its tokens."""
    text = f"One {item} costs {price}."
    usage = {"input_tokens": 4, "output_tokens": len(text.split()), "total_tokens": 4 + len(text.split())}
    return {"role": "assistant", "content": text, "usage_metadata": usage}


@traceable
def answer(item: str) -> str:
    """Answer a customer. It is the root of the trace; an exception in it would be in the trace too."""
    return phrase(item, find_price(item))["content"]


if __name__ == "__main__":
    client = Client()
    with tracing_context(client=client):
        print(answer("tea"))

    # The client sends in the background; a program that ends at once has to wait for it.
    client.flush()
