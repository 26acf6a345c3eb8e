"""Polyaxon's API, and the services that run there."""
