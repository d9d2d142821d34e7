"""The report's style sheet: one column on a phone, two beside each other on a desk, light and dark."""

from __future__ import annotations

STYLE = """
:root{--paper:#fbfbf9;--card:#fff;--ink:#1c2024;--soft:#5f6670;--rule:#dcdfe3;--ok:#1a7f4b;--warn:#9a6700;
--bad:#c4320a;--unknown:#6b7280;--s0:#0b6bb8;--s1:#b86e00;--s2:#0b8a6a;--s3:#a0428f;--s4:#6b7280}
@media(prefers-color-scheme:dark){:root{--paper:#121417;--card:#1b1f24;--ink:#e8eaed;--soft:#9aa3ad;--rule:#30363d;
--ok:#4cc38a;--warn:#e2b340;--bad:#ff8060;--unknown:#9aa3ad;--s0:#63b3f4;--s1:#f0a93b;--s2:#45c9a3;--s3:#e08fd0;
--s4:#9aa3ad}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,sans-serif}
main{max-width:1080px;margin:0 auto;padding:16px}
header{border-left:6px solid var(--unknown);padding:4px 0 4px 16px;margin:8px 0 20px}
header.ok{border-color:var(--ok)}header.warn{border-color:var(--warn)}header.bad{border-color:var(--bad)}
.kind{margin:0;color:var(--soft);font-size:14px}
h1{margin:0 0 8px;font-size:clamp(24px,6vw,36px);line-height:1.15}
h2{font-size:20px;margin:0 0 4px}h3{font-size:15px;margin:0 0 6px}
dl{display:flex;flex-wrap:wrap;gap:6px 24px;margin:0}dt{color:var(--soft);font-size:13px}dd{margin:0}
nav ul{list-style:none;margin:0 0 20px;padding:0;display:grid;gap:8px}
nav a{color:inherit;text-decoration:none}nav a:hover b{text-decoration:underline}
nav li>span{color:var(--soft)}
.badge{display:inline-block;font-size:12px;font-weight:600;border:1px solid currentColor;border-radius:99px;
padding:0 8px;margin-right:8px;vertical-align:2px;color:var(--unknown)}
.badge.ok{color:var(--ok)}.badge.warn{color:var(--warn)}.badge.bad{color:var(--bad)}
section{background:var(--card);border:1px solid var(--rule);border-radius:10px;padding:16px;margin:0 0 16px}
.verdict{margin:0 0 12px}
.plots{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,340px),1fr));gap:20px}
figure{margin:0}figcaption{color:var(--soft);font-size:13px}
svg{display:block;width:100%;height:auto;font:12px system-ui,sans-serif;fill:var(--soft)}
@media(min-width:700px){svg{font-size:10px}}
svg .name{text-anchor:end}svg .grid{stroke:var(--rule);stroke-width:1}
svg .limit{stroke:var(--bad);stroke-dasharray:4 3}svg .limit-label{fill:var(--bad)}
svg .line{fill:none;stroke-width:1.6;stroke-linejoin:round}svg .bar,svg .cell{fill:var(--s0)}
svg .bad{fill:var(--bad)}
svg .line.s0{stroke:var(--s0)}svg .line.s1{stroke:var(--s1)}svg .line.s2{stroke:var(--s2)}
svg .line.s3{stroke:var(--s3)}svg .line.s4{stroke:var(--s4)}
svg .dot.s0,i.s0{fill:var(--s0);background:var(--s0)}svg .dot.s1,i.s1{fill:var(--s1);background:var(--s1)}
svg .dot.s2,i.s2{fill:var(--s2);background:var(--s2)}svg .dot.s3,i.s3{fill:var(--s3);background:var(--s3)}
svg .dot.s4,i.s4{fill:var(--s4);background:var(--s4)}
.legend{margin:2px 0;font-size:13px;color:var(--soft);display:flex;flex-wrap:wrap;gap:2px 14px}
.legend i{display:inline-block;width:14px;height:4px;border-radius:2px;margin-right:5px;vertical-align:3px}
.nothing,.more,footer{color:var(--soft);font-size:14px}
details{margin-top:12px}summary{cursor:pointer;font-weight:600;font-size:15px}
.page{border-top:1px solid var(--rule);margin:0;padding:8px 0}
.page>summary span{color:var(--soft);font-weight:400;font-size:14px}
.page>.plots{margin-top:10px}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums;width:100%}
th,td{text-align:left;padding:4px 10px 4px 0;border-bottom:1px solid var(--rule);white-space:nowrap}
th{color:var(--soft);font-weight:600;white-space:normal;vertical-align:bottom}
td.long{white-space:normal;overflow-wrap:anywhere}
@media(max-width:560px){thead{display:none}tbody tr{display:grid;grid-template-columns:1fr 1fr;gap:2px 12px;
padding:6px 0;border-bottom:1px solid var(--rule)}td{border:0;padding:0;white-space:normal}
td{overflow-wrap:anywhere}td.long{grid-column:1/-1}
td::before{content:attr(data-name);display:block;color:var(--soft);font-size:12px}}
@media print{section{break-inside:avoid}}
"""
