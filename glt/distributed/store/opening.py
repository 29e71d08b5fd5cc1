"""How a tensor is created or found on all servers, or on none."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from glt.errors import GltError

if TYPE_CHECKING:
    from glt.distributed.world import World

logger = logging.getLogger(__name__)


def open_everywhere(world: World, call: str, args: tuple[Any, ...], handle: str) -> list[dict[str, Any]]:
    """Returns what each server answered.

    Args:
        world: The servers.
        call: ``'glt.tensor.create'`` or ``'glt.tensor.open'``.
        args, handle: Of that.

    Raises:
        LookupError: If some servers have lost a tensor that all had, or it is deleted this moment.
        Exception: What the first server raised that could not do it; the others then forget what they made for it.
    """
    replies = [world.call(server, call, *args, handle) for server in range(world.num_servers)]
    failed: BaseException | None = next(
        (error for error in (reply.exception() for reply in replies) if error is not None), None
    )
    answers = {server: reply.result() for server, reply in enumerate(replies) if reply.exception() is None}
    failed = _loss(answers) if failed is None else failed
    if failed is not None:
        for server, answer in answers.items():
            if answer.get("is_new"):
                _undo(world, server, answer["generation"], str(failed))
        raise failed
    generations = [answer["generation"] for answer in answers.values()]
    if any(answer["peers"] is None for answer in answers.values()):
        for reply in [
            world.call(server, "glt.tensor.made", mine, generations) for server, mine in enumerate(generations)
        ]:
            reply.result()
    return list(answers.values())


def _loss(answers: dict[int, Any]) -> LookupError | None:
    """Where a server has another tensor than those that the other servers' was made with, rows are gone: first values
    in their place would be a silent change."""
    for answer in answers.values():
        lost = [server for server, of in enumerate(answer["peers"] or ()) if answers[server]["generation"] != of]
        if lost:
            return LookupError(
                f"servers {lost} have no rows of a tensor that was on all of them: they were restarted since, or "
                "another trainer deletes it this moment. Find out which; delete the tensor, create it again and load "
                "what was saved"
            )
    return None


def _undo(world: World, server: int, generation: int, why: str) -> None:
    try:
        world.call(server, "glt.tensor.undo", generation, why).result()
    except GltError as error:  # the server is lost, and what it made with it
        logger.info("while undoing the creation of a tensor: %s", error)
