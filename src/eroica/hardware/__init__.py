"""Hardware channels: what threads, cores, quotas, interfaces, connections and GPUs did during a window.

`writer` and the sampler use only the standard library; `store` reads the samples with NumPy. AMD devices and NVLink
counters have no channel.
"""
