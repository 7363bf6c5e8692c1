"""Parts that the Spark source, the sink, loads and their tasks share: options, a driver's and a
worker's connections, group commits, and the lag listener.
"""
