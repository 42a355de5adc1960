"""Trainings of several seeds side by side, by which records were made."""
