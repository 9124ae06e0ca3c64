"""Why is this file where it is? Rules from the most pressing state to the final ones; the first that fits answers. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidemark.proof import why_file_at_receiver, why_file_at_site
from tidemark.proof.explanation import Explanation, when
from tidemark.proof.file_story import FileStory, Told


def explain_file(story: FileStory, events: tuple[str, ...] = ()) -> Explanation:
    """The first rule that fits, with everything that is known as evidence."""
    told = next(answer for rule in _RULES if (answer := rule(story)) is not None)
    return Explanation(
        subject=story.path,
        kind="file",
        state=told.state,
        cause=told.cause,
        evidence=(*told.evidence, *_facts(story), *events),
        next=told.next,
        if_you_wait=told.if_you_wait,
        final=told.final,
    )


def _else(story: FileStory) -> Told:
    return Told("known", "the ledger names it, and nothing is open for it", "./tidemark verify", "", True)


_RULES: Sequence[Callable[[FileStory], Told | None]] = (
    why_file_at_receiver.drop_waits,
    why_file_at_site.held_by_guard,
    why_file_at_receiver.refused,
    why_file_at_receiver.quarantined,
    why_file_at_receiver.held_back,
    why_file_at_site.skipped,
    why_file_at_site.under_way,
    why_file_at_site.left_to_next,
    why_file_at_site.waiting,
    why_file_at_receiver.given_up,
    why_file_at_site.told_by_receipt,
    why_file_at_site.adopted,
    why_file_at_receiver.landed,
    why_file_at_receiver.in_catalog,
    why_file_at_receiver.retired,
    why_file_at_site.gone,
    why_file_at_receiver.never_came,
    _else,
)


def _facts(story: FileStory) -> tuple[str, ...]:
    facts = []
    for link in story.links:
        if link["state"]:
            facts.append(
                f"link {link['link']}: {link['state']}, generation {link['generation']}, changed {when(link['changed'])}"
            )
        if link["unverified_since"]:
            facts.append(
                f"not verified at the source since {when(link['unverified_since'])}: its digest was made at the target only;"
                f" ./tidemark verify --site {story.site} proves it"
            )
    for r in story.receivers:
        live = "has it" if r["live"] else "has it no more"
        facts.append(
            f"inventory at {r['receiver']}: the site {live}; generation {r['generation']} carried by {r['landing']}"
        )
    for s in story.sources[:3]:
        seen = ", read" if s["visible"] else ""
        facts.append(f"catalog of {s['receiver']}: generation {s['generation']} {s['state']}{seen} as {s['location']}")
    return tuple(facts)
