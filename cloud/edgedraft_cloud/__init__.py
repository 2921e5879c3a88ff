"""The cloud verifier: one target shared by many devices of many tenants."""
