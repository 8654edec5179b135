"""The core API, which orchestrators and executors on different machines speak: its messages, generated from .proto."""
