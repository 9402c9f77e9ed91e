"""Draw a definition as SVG, optionally with the tokens of a run."""

from collections.abc import Iterator
from html import escape
from typing import Final, NamedTuple

from headwater.processors.graph.definition import Definition, Node, Transition
from headwater.processors.graph.layout import (
    NO_TOKENS,
    TokensAt,
    counts,
    drawn_state,
    label,
    layers,
)

# All in pixels.
_WIDTH: Final = 170
_HEIGHT: Final = 46
_BETWEEN: Final = 60
_BELOW: Final = 70
_MARGIN: Final = 30
#: How far a backward transition swings out to the right.
_SWING: Final = 50
#: Longer texts are cut; the title has the whole text, and viewers show it on hover.
_SHOWN: Final = 26

_STYLE: Final = (
    "text{font:12px sans-serif;text-anchor:middle}"
    ".owner,.way{fill:#666;font-size:10px}"
    "rect{fill:#f6f8fa;stroke:#57606a}"
    ".live rect{fill:#ddf4ff;stroke:#0969da;stroke-width:2}"
    ".failed rect{fill:#ffebe9;stroke:#cf222e;stroke-width:2}"
    ".done rect{fill:#dafbe1;stroke:#1a7f37}"
    ".subworkflow rect{stroke-dasharray:5 3}"
    "path{fill:none;stroke:#57606a}"
    ".tokens{fill:#0969da;font-size:10px}"
)
_ARROW: Final = (
    '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" '
    'markerHeight="8" orient="auto"><path d="M0 0L8 4L0 8z" style="fill:#57606a"/></marker></defs>'
)


class _Point(NamedTuple):
    x: int
    y: int


def to_svg(definition: Definition, tokens: TokensAt = NO_TOKENS) -> str:
    """Return a complete SVG document without external resources."""
    rows = layers(definition)
    widest = max((len(row) for row in rows), default=1)
    points = {
        ref: _Point(
            _MARGIN + _WIDTH // 2 + (2 * column + widest - len(row)) * (_WIDTH + _BETWEEN) // 2,
            _MARGIN + depth * (_HEIGHT + _BELOW),
        )
        for depth, row in enumerate(rows)
        for column, ref in enumerate(row)
    }
    width = 2 * _MARGIN + widest * (_WIDTH + _BETWEEN) - _BETWEEN + _SWING
    height = 2 * _MARGIN + len(rows) * (_HEIGHT + _BELOW) - _BELOW
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}"><title>{escape(definition.name)}</title>'
    )
    transitions = (
        line
        for transition in definition.transitions
        for line in _draw_transition(transition, points)
    )
    nodes = (_node(node, points[node.ref], tokens) for node in definition.nodes)
    return "\n".join([head, f"<style>{_STYLE}</style>", _ARROW, *transitions, *nodes, "</svg>\n"])


def _draw_transition(transition: Transition, points: dict[str, _Point]) -> Iterator[str]:
    start, end = points[transition.from_node_ref], points[transition.to_node_ref]
    text = label(transition)
    if end.y > start.y:
        top, bottom = start.y + _HEIGHT, end.y
        middle = (top + bottom) // 2
        line = f"M{start.x} {top}C{start.x} {middle} {end.x} {middle} {end.x} {bottom}"
        label_point = _Point((start.x + end.x) // 2, middle)
    else:
        # Back, or to the side: out to the right, so that it crosses no node of its own column.
        right = max(start.x, end.x) + _WIDTH // 2
        out, back = start.y + _HEIGHT // 2, end.y + _HEIGHT // 2
        # Keep a transition from a node to itself visible.
        out += _HEIGHT // 4 if out == back else 0
        far = right + _SWING
        line = (
            f"M{start.x + _WIDTH // 2} {out}C{far} {out} {far} {back} {end.x + _WIDTH // 2} {back}"
        )
        label_point = _Point(right, (out + back) // 2)
    title = f"<title>{escape(transition.ref)}</title>"
    yield f'<path d="{line}" marker-end="url(#arrow)">{title}</path>'
    if text:
        position = f'x="{label_point.x}" y="{label_point.y}"'
        title = f"<title>{escape(text)}</title>"
        yield f'<text class="way" {position}>{escape(_cut(text))}{title}</text>'


def _node(node: Node, point: _Point, tokens: TokensAt) -> str:
    token_counts = counts(tokens, node.ref)
    classes = ["subworkflow"] if node.subworkflow else []
    classes += [drawn for drawn in [drawn_state(tokens, node.ref)] if drawn]
    owner = node.task or node.subworkflow or ""
    parts = [
        f'<g class="{" ".join(classes)}">',
        f'<rect x="{point.x - _WIDTH // 2}" y="{point.y}" width="{_WIDTH}" height="{_HEIGHT}" '
        'rx="6"/>',
        f'<text x="{point.x}" y="{point.y + 20}">{escape(_cut(node.ref))}</text>',
        f'<text class="owner" x="{point.x}" y="{point.y + 36}">{escape(_cut(owner))}</text>',
    ]
    if token_counts:
        text_y = point.y + _HEIGHT + 12
        parts.append(
            f'<text class="tokens" x="{point.x}" y="{text_y}">{escape(token_counts)}</text>'
        )
    return "".join([*parts, f"<title>{escape(node.ref)}</title></g>"])


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
