"""What the fork server of clusters imports: its trainers' sampling processes are forked, see forked.py."""

import forked

forked.serve_trainers()
