"""The meaning of RBAC, NetworkPolicy, Istio and training kinds, which do not run here: pure functions over a store."""
