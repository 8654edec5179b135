"""The HTML pages on which people sign in. They work without scripts, and load nothing from anywhere.

Everything that is not from this file is escaped. The content security policy allows only the style of the page, by its
hash, and forms to this server.
"""

import base64
import hashlib
from collections.abc import Mapping
from html import escape
from urllib.parse import urlencode

import msgspec
from starlette.responses import Response

_STYLE = """
:root { color-scheme: light dark; --text: #1d2430; --soft: #5b6675; --line: #c9d0da; --back: #f4f6f9; --card: #fff;
  --link: #0b5cad; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --text: #e4e8ee; --soft: #9aa5b4; --line: #3a4454; --back: #0f1319;
  --card: #171c24; --link: #7db8ff; --bad: #ff8a80; } }
* { box-sizing: border-box; }
body { margin: 0; font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); }
main { max-width: 26rem; margin: 8vh auto; padding: 2rem; background: var(--card); border: 1px solid var(--line);
  border-radius: 10px; }
h1 { margin: 0 0 1rem; font-size: 1.4rem; }
label { display: block; margin: .8rem 0 .2rem; font-weight: 600; }
input { width: 100%; padding: .55rem .7rem; font: inherit; color: inherit; background: var(--back);
  border: 1px solid var(--line); border-radius: 6px; }
button, .button { display: block; width: 100%; margin-top: 1rem; padding: .6rem; font: inherit; font-weight: 600;
  text-align: center; text-decoration: none; cursor: pointer; color: var(--card); background: var(--link);
  border: 1px solid var(--link); border-radius: 6px; }
button.quiet { color: var(--link); background: none; }
:focus-visible { outline: 3px solid var(--link); outline-offset: 2px; }
summary { margin-top: 1.5rem; color: var(--link); cursor: pointer; }
a { color: var(--link); }
code { font-size: 1.3rem; letter-spacing: .1em; }
.problem { padding: .6rem .8rem; border: 1px solid var(--bad); border-radius: 6px; color: var(--bad); }
.soft { color: var(--soft); }
"""
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()


class SignInPage(msgspec.Struct, frozen=True, kw_only=True):
    """What the sign-in page shows: where to go afterwards, a problem, and the name of the OIDC provider if any."""

    next: str
    problem: str | None = None
    email: str = ""
    provider: str | None = None


def render_sign_in(content: SignInPage, status: int = 200) -> Response:
    """Return the page with the ways to sign in."""
    provider = ""
    if content.provider is not None:
        query = escape(urlencode({"next": content.next}))
        provider = f'<a class="button" href="/login/oidc?{query}">Continue with {escape(content.provider)}</a>'

    password = _render_form(
        "/login/password",
        '<label for="email">E-mail</label>'
        f'<input id="email" name="email" type="email" autocomplete="username" required value="{escape(content.email)}">'
        '<label for="password">Password</label>'
        '<input id="password" name="password" type="password" autocomplete="current-password" required>'
        "<button>Sign in</button>",
        {"next": content.next},
    )

    key = _render_form(
        "/login/key",
        '<label for="key">API key</label>'
        '<input id="key" name="key" type="password" autocomplete="off" spellcheck="false" required>'
        '<button class="quiet">Sign in with the key</button>',
        {"next": content.next},
    )

    problem = _render_problem(content.problem)
    body = f"{problem}{provider}{password}<details><summary>Use an API key</summary>{key}</details>"
    return render_page("Sign in to Portside", body, status)


def render_signed_in(name: str) -> Response:
    """Return the page for somebody who is signed in."""
    console = '<a class="button" href="/console/">Open the console</a>'
    form = _render_form("/login/out", '<button class="quiet">Sign out</button>', {})
    return render_page("Portside", f"<p>You are signed in as <strong>{escape(name)}</strong>.</p>{console}{form}")


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    """What the page shows on which somebody approves a terminal. `fields` go back with the form to `action`."""

    action: str
    fields: Mapping[str, str]
    account: str
    host_name: str | None
    address: str
    user_code: str | None = None
    is_elsewhere: bool = False


def render_approval(approval: Approval, *, form_targets: str = "'self'") -> Response:
    """Return the page on which somebody approves or refuses the sign-in of a terminal."""
    host = f" on <strong>{escape(approval.host_name)}</strong>" if approval.host_name else ""

    code = ""
    if approval.user_code:
        code = f"<p>Compare: the terminal shows</p><p><code>{escape(approval.user_code)}</code></p>"

    warning = (
        "This terminal is at another address than your browser. Refuse it if somebody sent you the link or the code."
    )
    problem = _render_problem(warning if approval.is_elsewhere else None)

    body = (
        f"{problem}<p>A terminal{host} at the address <strong>{escape(approval.address)}</strong> wants to act as "
        f"<strong>{escape(approval.account)}</strong>.</p>{code}"
        '<p class="soft">Approve this only if you ran “portside login” yourself, just now. The terminal gets all your '
        "permissions.</p>"
    )

    buttons = (
        '<button name="decision" value="approve">Approve</button>'
        '<button class="quiet" name="decision" value="deny">Refuse</button>'
    )

    form = _render_form(approval.action, buttons, approval.fields)
    return render_page("Sign in a terminal", body + form, form_targets=form_targets)


def render_user_code(user_code: str, problem: str | None = None, status: int = 200) -> Response:
    """Return the page on which somebody types the code that a terminal shows."""
    form = _render_form(
        "/device",
        '<label for="user_code">Code</label>'
        f'<input id="user_code" name="user_code" autocomplete="off" spellcheck="false" required maxlength="20" '
        f'value="{escape(user_code)}"><button>Continue</button>',
        {},
    )

    body = f"{_render_problem(problem)}<p>Enter the code that the terminal shows.</p>{form}"
    return render_page("Sign in a terminal", body, status)


def render_note(title: str, text: str, status: int = 200) -> Response:
    """Return a page with one sentence."""
    return render_page(title, f"<p>{escape(text)}</p>", status)


def _render_form(action: str, content: str, hidden: Mapping[str, str]) -> str:
    fields = "".join(
        f'<input type="hidden" name="{escape(name)}" value="{escape(value)}">' for name, value in hidden.items()
    )
    return f'<form method="post" action="{escape(action)}">{fields}{content}</form>'


def _render_problem(text: str | None) -> str:
    return f'<p class="problem" role="alert">{escape(text)}</p>' if text else ""


def render_page(title: str, body: str, status: int = 200, *, form_targets: str = "'self'") -> Response:
    """Return a page. `body` is HTML; `form_targets` are the origins that its forms may lead to."""
    html = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body><main><h1>{escape(title)}</h1>{body}</main></body></html>"
    )

    headers = {
        "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; "
        f"form-action {form_targets}; base-uri 'none'; frame-ancestors 'none'",
        "X-Frame-Options": "DENY",
        # With `no-referrer`, browsers send the origin `null` with the page's own forms.
        "Referrer-Policy": "same-origin",
        "Cache-Control": "no-store",
    }

    return Response(html, status, headers, "text/html")
