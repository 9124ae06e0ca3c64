"""The style of our HTML pages (coverage and cluster; light, dark and print), and text in them."""

from __future__ import annotations

import html

from tidemark.visible import escape_invisible


def escape_html(text: str) -> str:
    """Escape text for HTML, and make invisible characters visible."""
    return html.escape(escape_invisible(text))


STYLE = """
:root { --ink: #1d2a33; --faint: #6b7a85; --line: #dfe5e9; --ground: #fff; --panel: #f6f8f9;
        --ok: #3f9c72; --some: #dd9a2e; --bad: #d5453b }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6ecf0; --faint: #93a3ae; --line: #2c3942; --bad: #ef6a5f; --ground: #131a1f; --panel: #1a2329 }
}
* { box-sizing: border-box }
body { margin: 0; background: var(--ground); color: var(--ink);
       font: 14px/1.45 system-ui, "Segoe UI", Roboto, "Noto Sans", sans-serif }
main { max-width: 1280px; margin: 0 auto; padding: 28px 24px 60px }
h1 { font-size: 22px; margin: 0 0 2px } h2 { font-size: 17px; margin: 36px 0 8px }
.faint { color: var(--faint) } .mono { font-family: ui-monospace, "DejaVu Sans Mono", Menlo, monospace; font-size: 12px }
.totals { display: flex; flex-wrap: wrap; gap: 12px; margin: 18px 0 14px }
.totals div { background: var(--panel); border: 1px solid var(--line); border-radius: 8px; padding: 10px 16px;
              min-width: 120px }
.totals b { display: block; font-size: 22px; font-variant-numeric: tabular-nums }
.totals .bad b, text.bad { color: var(--bad); fill: var(--bad) } .totals .ok b { color: var(--ok) }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; align-items: center; color: var(--faint); margin-bottom: 4px }
.legend svg { vertical-align: -2px; margin-right: 5px }
.map { display: flex; border: 1px solid var(--line); border-radius: 8px; overflow: hidden; background: var(--panel) }
.map .names { flex: none; max-width: 38%; overflow-x: auto; border-right: 1px solid var(--line); background: var(--ground) }
.map .cells { flex: 1; overflow-x: auto }
svg text { fill: var(--ink); font: 11px ui-monospace, "DejaVu Sans Mono", Menlo, monospace }
svg .tick { fill: var(--faint); font: 11px system-ui, "Segoe UI", Roboto, "Noto Sans", sans-serif }
svg .rule { stroke: var(--line) } svg .cut { stroke: var(--faint); stroke-dasharray: 2 2 }
svg .ok { fill: var(--ok) } svg .some { fill: var(--some) } svg .bad { fill: var(--bad) }
svg .unsure { fill: var(--ground); stroke: var(--faint); stroke-dasharray: 3 2 } .late { color: var(--bad); font-size: 14px }
svg .stroke { stroke: var(--ground); stroke-width: 2 }
svg .rows rect:hover { stroke: var(--ink); stroke-width: 1.5 }
table { border-collapse: collapse; width: 100%; margin-top: 12px }
th { text-align: left; color: var(--faint); font-weight: 500 }
th, td { padding: 4px 12px 4px 0; border-bottom: 1px solid var(--line); vertical-align: top }
td:nth-child(2), td:nth-child(3) { white-space: nowrap; font-variant-numeric: tabular-nums }
.gap { border-left: 4px solid var(--bad); padding: 6px 12px; margin: 8px 0; background: var(--panel) }
@media print { .map .cells { overflow: visible } }
"""
