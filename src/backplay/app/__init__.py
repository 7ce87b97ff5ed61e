"""The explorer in the browser: `backplay app` (the `app` extra). It listens on this machine alone and asks no other."""
