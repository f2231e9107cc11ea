"""Hardware channels: what threads, cores, quotas, interfaces, connections and GPUs did during a window.

`writer` and everything the sampler needs is standard library; `store` reads the samples back with NumPy. NVIDIA devices
are read through NVML; AMD devices and NVLink counters have no channel.
"""
