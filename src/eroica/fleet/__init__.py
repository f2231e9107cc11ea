"""What a job sends to the service of a fleet: records, and the process that sends them. Jobs never wait for it."""
