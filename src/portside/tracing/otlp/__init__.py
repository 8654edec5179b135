"""Traces from OpenTelemetry: spans become runs (contract: hosted API, section f.6)."""
