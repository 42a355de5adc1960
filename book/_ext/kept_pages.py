"""Keep the pages as they were written, so that the next build writes those that changed.

What later steps do to all pages (cards, light pages, the policy) is done anew to a copy of them.
A page shows titles, numbers and places of others. Where one of these changed, every page is written.
"""

import hashlib
import shutil
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

WRITTEN = "written"  # beside html, in _build
SHARED = ".shared"  # there, too: a hash of what pages show of each other


def folder_of(app: Sphinx) -> Path:
    return Path(app.outdir).with_name(WRITTEN)


def shared(env: BuildEnvironment) -> str:
    """Hash of what a page may show of another: titles, contents, numbers and labels."""
    standard = env.get_domain("std").data
    proofs: dict[str, dict[str, Any]] = getattr(env, "proof_list", {})
    parts = [
        sorted((name, title.astext()) for name, title in env.titles.items()),
        sorted((name, contents.pformat()) for name, contents in env.tocs.items()),
        sorted(env.toc_secnumbers.items()),
        sorted(env.toc_fignumbers.items()),
        sorted(standard["labels"].items()),
        sorted(standard["anonlabels"].items()),
        sorted(standard["terms"].items()),
        sorted(env.get_domain("math").data["objects"].items()),
        sorted((label, proof["docname"], proof["realtype"]) for label, proof in proofs.items()),
        sorted(getattr(env, "sphinx_exercise_registry", {})),
    ]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def pages_to_write(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """All pages where something changed that they show of each other."""
    stamp = folder_of(app).with_name(SHARED)
    app.shared = shared(env)
    unchanged = stamp.is_file() and stamp.read_text() == app.shared
    return [] if unchanged else sorted(env.found_docs)


def at_least_one(
    app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]
) -> list[str]:
    """The first page where none has changed, or Sphinx ends before it copies styles and scripts."""
    return [] if added | changed | removed else [app.config.root_doc]


def keep(app: Sphinx, exception: Exception | None) -> None:
    if exception is not None or app.builder.format != "html":
        return
    folder = folder_of(app)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(app.outdir, folder)
    folder.with_name(SHARED).write_text(app.shared)


def setup(app: Sphinx) -> dict[str, Any]:
    # After all numbers have been given, which is behind the event "env-updated".
    app.connect("env-get-updated", pages_to_write, priority=900)
    app.connect("env-get-outdated", at_least_one)
    app.connect("build-finished", keep, priority=0)  # before anything is done to the pages
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
