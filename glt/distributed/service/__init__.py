"""Sampling as a service: servers, their pools of samplers, and clients."""
