"""Ids that are not dense: integers and strings, sorted out of core, stored, translated."""
