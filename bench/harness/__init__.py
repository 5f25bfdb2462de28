"""What every benchmark shares: jobs, machine rates, the link to the peers' processes, the table."""
