"""Draw a graph run: its definition with the tokens on it."""

from collections import Counter
from collections.abc import Iterable
from typing import Literal, TypeAlias

from headwater.processors.graph.layout import TokensAt
from headwater.processors.graph.mermaid import to_mermaid
from headwater.processors.graph.past import Past
from headwater.processors.graph.svg import to_svg
from headwater.processors.runs.decisions import Rejection
from headwater.processors.runs.token_views import TokenView
from headwater.schemas.failures import SEQUENCE_NOT_FOUND

#: Format of a drawing.
Format: TypeAlias = Literal["svg", "mermaid"]


def draw(past: Past, drawing_format: Format) -> str | Rejection:
    """Return the drawing of a run, as far as it is folded."""
    if past.graph is None:
        return Rejection(
            SEQUENCE_NOT_FOUND,
            f"at: expected 1 or more, where the run of {past.workflow}/{past.instance_id} has its "
            f"definition, found {past.until}",
        )
    definition, tokens = past.graph.definition, tokens_at(past.tokens.values())
    return to_svg(definition, tokens) if drawing_format == "svg" else to_mermaid(definition, tokens)


def tokens_at(tokens: Iterable[TokenView]) -> TokensAt:
    """Count the tokens of each status at each node, in the order of their creation."""
    counts: dict[str, Counter[str]] = {}
    for token in tokens:
        counts.setdefault(token.node, Counter())[token.status] += 1
    return counts
