"""The same program with OpenTelemetry: what any language, or a program that has it already, can send.

The exporter reads its address and its headers from the environment (see the README).
"""

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

PRICES = {"tea": 3, "cake": 4}

provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
tracer = provider.get_tracer("shop")


def find_price(item: str) -> int:
    """Look a price up."""
    with tracer.start_as_current_span("find_price") as span:
        span.set_attribute("gen_ai.operation.name", "execute_tool")
        span.set_attribute("gen_ai.tool.name", "find_price")
        return PRICES[item]


def phrase(item: str, price: int) -> str:
    """Stand for a model. These names are OpenTelemetry's conventions for models; the platform reads them."""
    with tracer.start_as_current_span("phrase") as span:
        text = f"One {item} costs {price}."
        span.set_attribute("gen_ai.operation.name", "chat")
        span.set_attribute("gen_ai.request.model", "rules")
        span.set_attribute("gen_ai.usage.input_tokens", 4)
        span.set_attribute("gen_ai.usage.output_tokens", len(text.split()))
        return text


def answer(item: str) -> str:
    """Answer a customer. It is the root of the trace."""
    with tracer.start_as_current_span("answer"):
        return phrase(item, find_price(item))


if __name__ == "__main__":
    print(answer("tea"))
    provider.shutdown()
