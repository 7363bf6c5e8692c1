"""One segment: its file, its index, look-ups and scans."""
