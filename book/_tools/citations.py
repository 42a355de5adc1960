"""Citations and reference lists as plain Markdown, from the book's .bib files."""

from __future__ import annotations

from book_layout import BookError
from pybtex.database import BibliographyData, Entry, Person, parse_file
from pybtex.richtext import Text


def plain(latex: str) -> str:
    return Text.from_latex(latex).render_as("text")


def last_name(person: Person) -> str:
    return plain(" ".join([*person.prelast_names, *person.last_names]))


def full_name(person: Person) -> str:
    return plain(" ".join([*person.first_names, *person.middle_names])) + " " + last_name(person)


class Citations:
    def __init__(self, files: list) -> None:
        self.data = BibliographyData()
        for file in files:
            if file.is_file():
                self.data.add_entries(parse_file(str(file), "bibtex").entries.items())

    def entry(self, key: str) -> Entry:
        if key not in self.data.entries:
            raise BookError(f"no citation key {key!r} in the .bib file")
        return self.data.entries[key]

    def authors(self, key: str) -> str:
        names = [last_name(person) for person in self.entry(key).persons.get("author", [])]
        if len(names) > 2:
            return f"{names[0]} et al."
        return " and ".join(names) or key

    def year(self, key: str) -> str:
        return self.entry(key).fields.get("year", "n.d.")

    def textual(self, keys: list[str]) -> str:
        """Moreno-Muñoz et al. (2023)"""
        return ", ".join(f"{self.authors(key)} ({self.year(key)})" for key in keys)

    def parenthetical(self, keys: list[str]) -> str:
        """(Han, 1978; Tipping and Bishop, 1999)"""
        return "(" + "; ".join(sorted(f"{self.authors(k)}, {self.year(k)}" for k in keys)) + ")"

    def reference(self, key: str) -> str:
        entry = self.entry(key)
        fields = entry.fields
        names = ", ".join(full_name(person) for person in entry.persons.get("author", []))
        venues = ("journal", "booktitle", "publisher", "howpublished", "school")
        venue = next((plain(fields[name]) for name in venues if name in fields), "")
        title = plain(fields.get("title", key))
        return f"{names} ({self.year(key)}). *{title}*." + (f" {venue}." if venue else "")
