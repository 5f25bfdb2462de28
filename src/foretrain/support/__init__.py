"""What every room needs: errors, progress, memory, seeds, the labelled store, engines, user files."""
