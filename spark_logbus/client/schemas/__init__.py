"""Schemas of topics: looked up for values, and administered.

``TopicSchemas`` has what a topic's configuration says of them. ``ValueSchemas`` has what a reader
of the topic needs (``ValueReader``), ``WriterSchema`` what a writer needs (``ValueWriter``), and
``NewTopicSchema`` what is given for a topic to be created.
"""
