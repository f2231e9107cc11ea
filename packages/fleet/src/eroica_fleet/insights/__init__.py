"""What only a fleet knows: hosts, functions and moments that several jobs have in common, and a job's own past."""
