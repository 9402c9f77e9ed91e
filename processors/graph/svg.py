"""A definition as a picture in SVG, with the tokens of a run on it if they are given."""

from collections.abc import Iterator
from html import escape
from typing import Final, NamedTuple

from headwater.processors.graph.definition import Definition, Node, Transition
from headwater.processors.graph.layout import NO_TOKENS, TokensAt, counts, label, layers, standing

# All in pixels.
_WIDTH: Final = 170
_HEIGHT: Final = 46
_BETWEEN: Final = 60
_BELOW: Final = 70
_MARGIN: Final = 30
#: How far a way that leads back swings out to the right.
_SWING: Final = 50
#: Longer texts are cut; the whole is in the title, which viewers show on hovering.
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


class _Place(NamedTuple):
    x: int
    y: int


def to_svg(definition: Definition, tokens: TokensAt = NO_TOKENS) -> str:
    """The picture: a document of its own, without anything from outside."""
    rows = layers(definition)
    widest = max((len(row) for row in rows), default=1)
    places = {
        ref: _Place(
            _MARGIN + _WIDTH // 2 + (2 * at + widest - len(row)) * (_WIDTH + _BETWEEN) // 2,
            _MARGIN + depth * (_HEIGHT + _BELOW),
        )
        for depth, row in enumerate(rows)
        for at, ref in enumerate(row)
    }
    width = 2 * _MARGIN + widest * (_WIDTH + _BETWEEN) - _BETWEEN + _SWING
    height = 2 * _MARGIN + len(rows) * (_HEIGHT + _BELOW) - _BELOW
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}"><title>{escape(definition.name)}</title>'
    )
    ways = (line for way in definition.transitions for line in _way(way, places))
    nodes = (_node(node, places[node.ref], tokens) for node in definition.nodes)
    return "\n".join([head, f"<style>{_STYLE}</style>", _ARROW, *ways, *nodes, "</svg>\n"])


def _way(way: Transition, places: dict[str, _Place]) -> Iterator[str]:
    start, end = places[way.from_node_ref], places[way.to_node_ref]
    said = label(way)
    if end.y > start.y:
        top, bottom = start.y + _HEIGHT, end.y
        middle = (top + bottom) // 2
        line = f"M{start.x} {top}C{start.x} {middle} {end.x} {middle} {end.x} {bottom}"
        at = _Place((start.x + end.x) // 2, middle)
    else:
        # Back, or to the side: out to the right, so that it crosses no node of its own column.
        right = max(start.x, end.x) + _WIDTH // 2
        out, back = start.y + _HEIGHT // 2, end.y + _HEIGHT // 2
        # A way to the node itself still has to be seen.
        out += _HEIGHT // 4 if out == back else 0
        far = right + _SWING
        line = (
            f"M{start.x + _WIDTH // 2} {out}C{far} {out} {far} {back} {end.x + _WIDTH // 2} {back}"
        )
        at = _Place(right, (out + back) // 2)
    yield f'<path d="{line}" marker-end="url(#arrow)"><title>{escape(way.ref)}</title></path>'
    if said:
        title = f"<title>{escape(said)}</title>"
        yield f'<text class="way" x="{at.x}" y="{at.y}">{escape(_cut(said))}{title}</text>'


def _node(node: Node, place: _Place, tokens: TokensAt) -> str:
    at = counts(tokens, node.ref)
    classes = ["subworkflow"] if node.subworkflow else []
    classes += [drawn for drawn in [standing(tokens, node.ref)] if drawn]
    owner = node.task or node.subworkflow or ""
    parts = [
        f'<g class="{" ".join(classes)}">',
        f'<rect x="{place.x - _WIDTH // 2}" y="{place.y}" width="{_WIDTH}" height="{_HEIGHT}" '
        'rx="6"/>',
        f'<text x="{place.x}" y="{place.y + 20}">{escape(_cut(node.ref))}</text>',
        f'<text class="owner" x="{place.x}" y="{place.y + 36}">{escape(_cut(owner))}</text>',
    ]
    if at:
        below = place.y + _HEIGHT + 12
        parts.append(f'<text class="tokens" x="{place.x}" y="{below}">{escape(at)}</text>')
    return "".join([*parts, f"<title>{escape(node.ref)}</title></g>"])


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
