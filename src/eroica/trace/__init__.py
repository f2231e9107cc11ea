"""Readers: Kineto traces, sampled stacks and Flight Recorder dumps become tables; nothing here judges them."""
