"""Stages of ones own, a policy, clients, and what else runs beside the server."""
