"""A definition as a Mermaid flowchart, with the tokens of a run on it if they are given."""

from typing import Final

from headwater.processors.graph.definition import Definition, Node
from headwater.processors.graph.layout import NO_TOKENS, TokensAt, counts, label, standing

#: How nodes are drawn at which tokens are, or were.
_STYLES: Final = {
    "live": "fill:#ddf4ff,stroke:#0969da,stroke-width:3px",
    "failed": "fill:#ffebe9,stroke:#cf222e,stroke-width:3px",
    "done": "fill:#dafbe1,stroke:#1a7f37",
}


def to_mermaid(definition: Definition, tokens: TokensAt = NO_TOKENS) -> str:
    """The text of a flowchart.

    Shape:  nodes are named by their place in the document, as Mermaid takes few characters in
            names; refs and expressions are labels.
    """
    names = {node.ref: f"n{index}" for index, node in enumerate(definition.nodes)}
    lines = ["flowchart TD", f"    start(( )) --> {names[definition.initial_node_ref]}"]
    lines += [f"    {names[node.ref]}{_shape(node, tokens)}" for node in definition.nodes]
    for way in definition.transitions:
        said = label(way)
        arrow = f'-->|"{_text(said)}"|' if said else "-->"
        lines.append(f"    {names[way.from_node_ref]} {arrow} {names[way.to_node_ref]}")
    for drawn, style in _STYLES.items():
        found = [names[ref] for ref in names if standing(tokens, ref) == drawn]
        if found:
            lines += [f"    classDef {drawn} {style}", f"    class {','.join(found)} {drawn}"]
    return "\n".join(lines) + "\n"


def _shape(node: Node, tokens: TokensAt) -> str:
    told = [node.ref]
    owner = node.task or node.subworkflow
    if owner != node.ref:
        told.append(owner or "")
    at = counts(tokens, node.ref)
    if at:
        told.append(at)
    text = "<br/>".join(_text(each) for each in told)
    return f'[["{text}"]]' if node.subworkflow else f'["{text}"]'


def _text(text: str) -> str:
    """Text within quotes: Mermaid reads characters by number, as HTML does, but with a `#`."""
    return "".join(
        each if each.isalnum() or each in " _.,:/-+*=" else f"#{ord(each)};" for each in text
    )
