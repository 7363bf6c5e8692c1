"""Programs that ``scripts/bench`` runs, each by the name of its module or package."""
