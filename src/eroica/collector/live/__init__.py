"""The live page as the collector serves it: who may see it, and what they are told; `eroica.views.live` draws it."""
