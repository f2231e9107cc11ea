"""The service that the jobs of a fleet report to, and the commands that run it and ask it.

Jobs never wait for it, and it answers no question that a job's own collector must answer in time. What a job sends is
made by `eroica.fleet`, which needs nothing of this.
"""
