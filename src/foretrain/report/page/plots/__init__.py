"""Pictures of the page."""
