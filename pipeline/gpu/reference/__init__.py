"""gpu.api.Ops in plain torch: what runs where no kernel does, and the oracle of those that do."""
