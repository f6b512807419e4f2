"""One page with everything that results/ holds: tables, figures, claims, settings, deviations."""
