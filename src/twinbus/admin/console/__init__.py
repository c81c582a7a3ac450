"""The web console: a page for people, and the JSON API that it stands on."""
