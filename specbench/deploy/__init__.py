"""A whole experiment: deploy, measure, stop, prove the device free, next."""
