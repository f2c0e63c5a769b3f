"""Loads runs; renders tables, figures and the page."""
