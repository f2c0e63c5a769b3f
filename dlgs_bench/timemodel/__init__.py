"""The paper's time model, planners, costs on other networks, and advice: pure functions."""
