"""Trainings that pages and experiments share, at the settings of a record and at tiny ones."""
