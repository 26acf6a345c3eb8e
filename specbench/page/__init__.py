"""An experiment as one HTML page."""
