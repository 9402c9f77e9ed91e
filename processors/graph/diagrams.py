"""Draw a definition as Mermaid or SVG, optionally with the tokens of a run."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Final, NamedTuple, TypeAlias

from headwater.processors.graph.definition import ON_ERROR, Definition, Node, Transition
from headwater.processors.graph.validation import JOIN_ALL

#: Number of tokens by node and status, for drawing a run.
TokensAt: TypeAlias = Mapping[str, Mapping[str, int]]

NO_TOKENS: Final[TokensAt] = {}
#: Label of a node that waits for one token by each of its transitions.
_JOINS_ALL: Final = "joins all"
_DRAWN: Final = {
    "failed": {"failed", "timed_out"},
    "live": {
        *("pending", "dispatched", "executing"),
        *("waiting_for_siblings", "waiting_for_subworkflow"),
        *("waiting_for_time", "waiting_for_event"),
    },
    "done": {"completed"},
}


def layers(definition: Definition) -> list[list[str]]:
    """Return the nodes by layer, in the order of the document. Takes linear time.

    A node is one layer below the lowest node that leads to it, not counting transitions that close
    a loop. Nodes without incoming transitions are at the top.
    """
    refs = [node.ref for node in definition.nodes]
    first = definition.initial_node_ref
    onward: dict[str, list[str]] = {ref: [] for ref in refs}
    for transition in definition.transitions:
        onward[transition.from_node_ref].append(transition.to_node_ref)
    order = _topological([first, *refs], onward)
    index = {ref: position for position, ref in enumerate(order)}
    depth = dict.fromkeys(refs, 0)
    for ref in order:
        for after in onward[ref]:
            if index[after] > index[ref]:
                depth[after] = max(depth[after], depth[ref] + 1)
    result: list[list[str]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for ref in refs:
        result[depth[ref]].append(ref)
    return result


def _topological(starts: Sequence[str], onward: Mapping[str, Sequence[str]]) -> list[str]:
    """Order the nodes so that all transitions lead forward, except those that close a loop."""
    seen: set[str] = set()
    finished: list[str] = []
    for start in starts:
        if start in seen:
            continue
        seen.add(start)
        # Without recursion, because a graph may be a chain of 10,000 nodes.
        path = [(start, iter(onward[start]))]
        while path:
            ref, left = path[-1]
            after = next((node for node in left if node not in seen), None)
            if after is None:
                finished.append(ref)
                path.pop()
            else:
                seen.add(after)
                path.append((after, iter(onward[after])))
    return finished[::-1]


def label(transition: Transition) -> str:
    """Return a short description of a transition; empty if it is always taken."""
    parts = ["on error"] if transition.on == ON_ERROR else []
    if transition.condition is not None:
        parts.append(transition.condition)
    if transition.foreach is not None:
        parts.append(f"each {transition.foreach.item_var} of {transition.foreach.collection}")
    if transition.spawn_count is not None and transition.spawn_count > 1:
        parts.append(f"{transition.spawn_count} times")
    if transition.loop_config is not None:
        parts.append(f"at most {transition.loop_config.max_iterations} times")
    if transition.synchronization is not None:
        parts.append(
            f"{transition.synchronization.strategy} of {transition.synchronization.sibling_group}"
        )
    return ", ".join(parts)


def counts(tokens: TokensAt, ref: str) -> str:
    """Return the tokens at a node as text, such as `2 executing, 1 completed`."""
    by_status = tokens.get(ref, {}).items()
    return ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in by_status if count)


def drawn_state(tokens: TokensAt, ref: str) -> str:
    """Return how to draw a node: failed if a token is, live while one is live, otherwise done.

    It is empty for a node without tokens, or with only cancelled ones.
    """
    present = {status for status, count in tokens.get(ref, {}).items() if count}
    for drawn, statuses in _DRAWN.items():
        if present & statuses:
            return drawn
    return ""


# -- Mermaid

#: Styles of nodes that have, or had, tokens. Their text is dark, also on dark pages.
_STYLES: Final = {
    "live": "fill:#ddf4ff,stroke:#0969da,stroke-width:3px,color:#1f2328",
    "failed": "fill:#ffebe9,stroke:#cf222e,stroke-width:3px,color:#1f2328",
    "done": "fill:#dafbe1,stroke:#1a7f37,color:#1f2328",
}


def to_mermaid(definition: Definition, tokens: TokensAt = NO_TOKENS) -> str:
    """Return the text of a flowchart.

    Nodes are named by their index in the document, because Mermaid allows few characters in names;
    refs and expressions are labels.
    """
    names = {node.ref: f"n{index}" for index, node in enumerate(definition.nodes)}
    lines = ["flowchart TD", f"    start(( )) --> {names[definition.initial_node_ref]}"]
    lines += [f"    {names[node.ref]}{_shape(node, tokens)}" for node in definition.nodes]
    for transition in definition.transitions:
        text = label(transition)
        arrow = "-.->" if transition.on == ON_ERROR else "-->"
        arrow += f'|"{_text(text)}"|' if text else ""
        lines.append(
            f"    {names[transition.from_node_ref]} {arrow} {names[transition.to_node_ref]}"
        )
    for drawn, style in _STYLES.items():
        matching = [names[ref] for ref in names if drawn_state(tokens, ref) == drawn]
        if matching:
            lines += [f"    classDef {drawn} {style}", f"    class {','.join(matching)} {drawn}"]
    return "\n".join(lines) + "\n"


def _shape(node: Node, tokens: TokensAt) -> str:
    lines = [node.ref]
    if node.owner != node.ref:
        lines.append(node.owner)
    if node.join == JOIN_ALL:
        lines.append(_JOINS_ALL)
    token_counts = counts(tokens, node.ref)
    if token_counts:
        lines.append(token_counts)
    text = "<br/>".join(_text(line) for line in lines)
    if node.subworkflow:
        return f'[["{text}"]]'
    return f'(["{text}"])' if node.wait or node.event else f'["{text}"]'


def _text(text: str) -> str:
    """Escape quoted text: Mermaid reads numeric character references like HTML's, but with `#`."""
    return "".join(
        character if character.isalnum() or character in " _.,:/-+*=" else f"#{ord(character)};"
        for character in text
    )


# -- SVG

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
    ".waits rect{rx:23px}"
    "path{fill:none;stroke:#57606a}"
    "path.error{stroke:#cf222e;stroke-dasharray:5 3}"
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
    error = ' class="error"' if transition.on == ON_ERROR else ""
    yield f'<path{error} d="{line}" marker-end="url(#arrow)">{title}</path>'
    if text:
        position = f'x="{label_point.x}" y="{label_point.y}"'
        title = f"<title>{escape(text)}</title>"
        yield f'<text class="way" {position}>{escape(_cut(text))}{title}</text>'


def _node(node: Node, point: _Point, tokens: TokensAt) -> str:
    token_counts = counts(tokens, node.ref)
    classes = ["subworkflow"] if node.subworkflow else []
    classes += ["waits"] if node.wait or node.event else []
    classes += [drawn for drawn in [drawn_state(tokens, node.ref)] if drawn]
    owner = f"{node.owner}, {_JOINS_ALL}" if node.join == JOIN_ALL else node.owner
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
