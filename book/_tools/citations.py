"""Citations and reference lists as plain Markdown, from the book's .bib files."""

from __future__ import annotations

from pathlib import Path

from book_layout import BookError
from pybtex.database import BibliographyData, Entry, Person, parse_file
from pybtex.richtext import Text

VENUES = ("journal", "booktitle", "publisher", "howpublished", "school")


def last_name(person: Person) -> str:
    return " ".join(map(str, [*person.rich_prelast_names, *person.rich_last_names]))


def full_name(person: Person) -> str:
    first = " ".join(map(str, [*person.rich_first_names, *person.rich_middle_names]))
    return f"{first} {last_name(person)}"


class Citations:
    def __init__(self, files: list[Path]) -> None:
        self.data = BibliographyData()
        for file in files:
            self.data.add_entries(parse_file(str(file), "bibtex").entries.items())

    def entry(self, key: str) -> Entry:
        if key not in self.data.entries:
            raise BookError(f"no citation key {key!r} in the .bib file")
        return self.data.entries[key]

    def cite(self, role: str, keys: list[str]) -> str:
        """Moreno-Muñoz et al. (2023), or with `cite:p` (Han, 1978; Tipping and Bishop, 1999)."""
        cited = []
        for entry in map(self.entry, keys):
            names = [last_name(person) for person in entry.persons["author"]]
            named = f"{names[0]} et al." if len(names) > 2 else " and ".join(names)
            cited.append((named, entry.fields["year"]))
        if role == "cite:t":
            return ", ".join(f"{names} ({year})" for names, year in cited)
        return "(" + "; ".join(sorted(f"{names}, {year}" for names, year in cited)) + ")"

    def reference(self, key: str) -> str:
        entry = self.entry(key)
        fields = {name: str(Text.from_latex(text)) for name, text in entry.fields.items()}
        names = ", ".join(full_name(person) for person in entry.persons["author"])
        venues = [fields[name] for name in VENUES if name in fields]
        ending = f" {venues[0]}." if venues else ""
        return f"{names} ({fields['year']}). *{fields['title']}*.{ending}"
