"""Recording a run."""
