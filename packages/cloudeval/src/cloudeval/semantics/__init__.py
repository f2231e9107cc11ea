"""What objects mean that do not run here: RBAC, NetworkPolicy, Istio and training kinds, as pure functions over a store."""
