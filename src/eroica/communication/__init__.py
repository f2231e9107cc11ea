"""What communication alone says of a job, all the time: which of four classes, and where.

    records of hosts ──ledger──▶ stretches ──work, matrix, reading──▶ slow ─┐
                        │                                                   ├──conclusion──▶ Verdict
                        └── standing counters, flows, processes ──▶ hang ───┘

After C4D (C4, arXiv 2406.04594): communication hang, non-communication hang, communication slow, non-communication
slow, each with a place. The paper names the classes and a matrix of delays and publishes no rules; those here are ours:

- no clock of one host is compared with another's: shares, durations and counters only;
- operations: who has not entered, by number; who spends the iteration outside of operations, by shares of moments;
- transport: how long a byte waits between the sender's write and its acknowledgement, host by host.
"""
