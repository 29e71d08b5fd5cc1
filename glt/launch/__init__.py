"""``glt launch`` and ``glt copy``: a job on this host, or on several over ssh, as a thin layer over torchrun.

On each host one small program, :mod:`~glt.launch.keeper`, starts its processes, passes on what they say, and ends them.
The launcher reaches it through the pipes of a child process: nothing listens on a port, and everything ends when the
pipes do. Importing this needs no torch.
"""
