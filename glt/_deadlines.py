"""All deadlines of glt, in seconds: how long it waits, and after how long it notices something.

Modules read them as attributes of this module, so that one place sets them. What a user may set, ``rpc_timeout`` and
the like, begins with ``DEFAULT``. ``docs/errors.md`` says what is noticed after how many seconds, by whom.

Programs that ``glt launch`` sends to other hosts (``launch/keeper.py``, ``check.py``, ``agent.py``) import no glt, and
have their own.
"""

from typing import Final

# -- what a user may set -------------------------------------------------------------------------------------------

DEFAULT_CHANNEL_S: Final = 180.0  # of a call on a channel
DEFAULT_RPC_S: Final = 180.0  # rpc_timeout: of start-up, of a request, and of the silence of a sampling process

# -- signs of life -------------------------------------------------------------------------------------------------

BEAT_S = 1.0  # between two signs of life of a process, on each of its connections and to its owner
STUCK_S = 30.0  # a server, a sampling process of one, or a trainer that gives none for so long is stopped or stuck
CUT_S = 10.0  # what was sent and is not acknowledged by the other host's kernel for so long: the network is cut
LEASE_S = 60.0  # a client that gives none for so long is, and loses its loaders; longer than STUCK_S
GRACE_S = 60.0  # a client or trainer that was lost may come back to its server within it
TAKEN_S = 3.0  # one that is silent for so long while another asks for its place, or could answer for it, loses it
ALONE_S = 600.0  # a server whose trainers do not come gives up

# -- starting ------------------------------------------------------------------------------------------------------

HANDSHAKE_S = 10.0  # for the first words over a new connection
RETRY_S = 0.1  # between two tries to connect
HINT_S = 5.0  # of a wait for processes that have not come yet, between two lines that say what it waits for
RECONNECT_S = 10.0  # for a server that is restarted, or whose sampling process is replaced, to be there again

# -- waiting -------------------------------------------------------------------------------------------------------

POLL_S = 0.5  # how often a wait looks whether what it waits for is still there
FAST_POLL_S = 0.05  # the same, of waits that are short as a rule
SEND_S = 5.0  # another process takes a command at once, unless it is stopped
MESSAGE_S = 60.0  # for a message of any size to go out
ANSWER_S = 30.0  # beyond the deadline of what was asked, for the answer to be on its way
CAUSE_S = 10.0  # for the process that knows more to say why a connection ended
MOVE_S = 2.0  # for the kernel to move tables to huge pages before a loader is there
SHOWN_S = 2.0  # for work to be done before a bar of it is drawn
COMPLAINT_S = 10.0  # between two lines of the log that say the same
DISK_S = 60.0  # for a disk to read the next of many rows
TURN_S = 60.0  # for a change of a tensor that others wait for to come
BARRIER_S = 1800.0  # as of torch.distributed: trainers may have very different things to do in between
DAY_S = 86400.0  # the longest that may be asked for; where it is what is waited, something else ends the wait

# -- ending --------------------------------------------------------------------------------------------------------

GOODBYE_S = 1.0  # for others to take the word that this process ends
DRAIN_S = 5.0  # for other trainers to end a loader too, before its end goes on in the background
JOIN_S = 5.0  # for a thread or process that was told to end
KILL_S = 10.0  # for a process that was killed: it is gone as soon as the kernel gets to it
LATE_S = 10.0  # in which those who are still on their way to a server that has failed are told why
DYING_S = 2.0  # for a process that is killed to be seen as ended: it closes its connections first

# -- launching and copying -----------------------------------------------------------------------------------------

LAUNCH_BEAT_S = 5.0  # between two signs of life of the launcher to its hosts
HOST_S = 60.0  # for a host to answer what is asked of it over ssh
HOST_CHECK_S = 90.0  # for the check of a host, beyond the time that connections have
PROGRESS_S = 5.0  # between two words of progress of a host
CALIBRATE_S = 240.0  # for the two trainers by which costs are measured
SETTLE_S = 0.5  # in which failures that one brought about may come to be known before that one
LAUNCH_CAUSE_S = 3.0  # the same, where all that are known lost a peer, which may take them time to raise
FORCE_S = 15.0  # beyond the time that processes have: for the keepers' SIGKILL, and its news
