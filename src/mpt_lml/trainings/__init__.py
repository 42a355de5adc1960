"""Trainings that a page shows, and that a record was made by: settings, one function, what it leaves."""
