"""How the processes talk: shared memory between worker and agent, HTTP between agent and collector."""
