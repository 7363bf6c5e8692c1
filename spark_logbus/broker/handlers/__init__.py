"""One handler an API, and the dispatcher that decodes requests and calls them."""
