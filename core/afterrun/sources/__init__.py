"""Readers that only yield records: from run stores, git and whatever else is indexed."""
