"""What a process tells over HTTP: its numbers, a page that shows them, Prometheus's metrics, answers to probes."""
