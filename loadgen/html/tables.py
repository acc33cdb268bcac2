"""Tables of the page."""

from html import escape


def table(head: list[str], rows: list[list[str]]) -> str:
    """The first column is a name, the others are numbers. Scrolls sideways where the page is narrow."""
    cells = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table></div>'


def facts(pairs: list[tuple[str, str]]) -> str:
    """Names and what they are."""
    return f"<dl>{''.join(f'<dt>{escape(name)}</dt><dd>{escape(value)}</dd>' for name, value in pairs)}</dl>"


def tiles(entries: list[tuple[str, str, str]]) -> str:
    """(name, value, note) of the few numbers to see first."""
    items = "".join(
        f"<li><span>{escape(name)}</span><b>{escape(value)}</b><small>{escape(note)}</small></li>"
        for name, value, note in entries
    )
    return f'<ul class="tiles">{items}</ul>'
