"""The paper's statements and our verdicts."""
