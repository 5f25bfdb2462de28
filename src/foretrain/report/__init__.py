"""Pictures of results, and the report that puts them together."""
