"""Serve the live page: access to it, and the news that its readers are told; `eroica.views.live` draws it."""
