"""Programs at scale: generators, budgets, shrinking, reports, seeded bugs."""
