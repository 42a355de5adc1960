"""A page of the built site in Chromium, with every request to another site refused."""

from __future__ import annotations

from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, Route

# The article beside it goes: 10,000 elements would be laid out at each change of width.
ALONE = """shown => {
  for (let at = shown; at.closest("article > *"); at = at.parentElement)
    for (const beside of [...at.parentElement.children]) if (beside !== at) beside.remove();
}"""


class Visit:
    """A page opened in a context of its own, with what went wrong while it was shown."""

    def __init__(self, browser: Browser, address: str, **context: object) -> None:
        self.context = browser.new_context(**context)
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(120_000)  # beside busy processes; in quiet a page takes 2 s
        self.host = urlsplit(address).netloc
        self.outside: list[str] = []
        self.errors: list[str] = []
        self.context.route("**/*", self.only_this_site)
        self.page.on("console", self.heard)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("requestfailed", lambda request: self.errors.append(f"failed: {request.url}"))
        self.page.goto(address, wait_until="load")

    def heard(self, message) -> None:
        if message.type == "error":
            self.errors.append(message.text)

    def only_this_site(self, route: Route) -> None:
        parts = urlsplit(route.request.url)
        if parts.netloc == self.host or parts.scheme in ("data", "blob"):
            route.continue_()
        else:
            self.outside.append(route.request.url)
            route.abort()

    def settle(self) -> Page:
        """Wait until every equation is typeset and the page stands still."""
        self.page.wait_for_function(
            "() => !window.MathJax || (MathJax.startup && MathJax.startup.promise)"
        )
        self.page.evaluate("() => window.MathJax ? MathJax.startup.promise : null")
        self.page.wait_for_timeout(150)
        return self.page

    def close(self) -> None:
        self.context.close()
