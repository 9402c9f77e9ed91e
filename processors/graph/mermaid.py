"""Draw a definition as a Mermaid flowchart, optionally with the tokens of a run."""

from typing import Final

from headwater.processors.graph.definition import Definition, Node
from headwater.processors.graph.layout import NO_TOKENS, TokensAt, counts, drawn_state, label

#: Styles of nodes that have, or had, tokens.
_STYLES: Final = {
    "live": "fill:#ddf4ff,stroke:#0969da,stroke-width:3px",
    "failed": "fill:#ffebe9,stroke:#cf222e,stroke-width:3px",
    "done": "fill:#dafbe1,stroke:#1a7f37",
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
        arrow = f'-->|"{_text(text)}"|' if text else "-->"
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
    owner = node.task or node.subworkflow
    if owner != node.ref:
        lines.append(owner or "")
    token_counts = counts(tokens, node.ref)
    if token_counts:
        lines.append(token_counts)
    text = "<br/>".join(_text(line) for line in lines)
    return f'[["{text}"]]' if node.subworkflow else f'["{text}"]'


def _text(text: str) -> str:
    """Escape quoted text: Mermaid reads numeric character references like HTML's, but with `#`."""
    return "".join(
        character if character.isalnum() or character in " _.,:/-+*=" else f"#{ord(character)};"
        for character in text
    )
