"""The fleet: a service that many jobs report to, and the side of a job that reports.

`reporting` runs beside a job and needs nothing but Eroica itself. All else is the service and needs `eroica[fleet]`.
Jobs never wait for it, and the service answers no question that a job's own collector must answer in time.
"""
