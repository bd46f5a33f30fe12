"""Delay queues: an asset with its checks, and the sensor that looks at each queue."""
