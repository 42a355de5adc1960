"""The paper's figures, tables and claims: one module a figure or table."""
