"""Measuring: from a scheduled request to a row of requests.jsonl."""
