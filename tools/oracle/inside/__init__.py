"""Runs inside the environment of one release, with stand-ins for the device; no CANN, no NPU."""
