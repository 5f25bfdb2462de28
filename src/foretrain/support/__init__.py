"""What every room needs: errors, progress, memory, seeds, threads, processes, stores, logs, engines, user files."""
