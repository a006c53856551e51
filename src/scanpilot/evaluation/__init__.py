"""How well a policy drives: episodes, metrics with intervals, suites, pictures."""
