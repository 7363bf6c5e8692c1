"""Verbs that administer a cluster: topics, groups, schemas, audit, mirrors."""
