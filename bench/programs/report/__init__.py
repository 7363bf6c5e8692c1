"""Documents made of raw results: tables, charts, and a page for each program."""
